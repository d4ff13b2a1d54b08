UPDATE outbox_row SET status='pending', attempt=0, failures=0, retries=0, rearms=0, vanished=0, silent=0, visible_after=strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', claim_token=NULL, claimed_at=NULL, claimed_by=NULL, lease_until=NULL, published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL, settled_at=NULL FROM (SELECT outbox_row.id AS id
FROM outbox_row
WHERE outbox_row.status = 'failed' AND outbox_row.namespace = ? AND outbox_row.task = ? AND outbox_row.workflow_id = ? AND (outbox_row.error LIKE '%' || ? || '%' ESCAPE '/') AND outbox_row.id IN (SELECT ids.id
FROM (SELECT json_extract(ids_items.value, '$[0]') AS id
FROM json_each(?) AS ids_items) AS ids) ORDER BY outbox_row.id
 LIMIT ? OFFSET ?) AS chosen WHERE outbox_row.id = chosen.id
