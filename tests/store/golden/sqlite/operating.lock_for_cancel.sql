SELECT outbox_row.id, outbox_row.task_id, outbox_row.worker, outbox_row.published_to, outbox_row.status, outbox_row.claim_token
FROM outbox_row
WHERE outbox_row.status IN ('pending', 'claimed') AND outbox_row.workflow_id = ? AND outbox_row.id IN (SELECT ids.id
FROM (SELECT json_extract(ids_items.value, '$[0]') AS id
FROM json_each(?) AS ids_items) AS ids) ORDER BY outbox_row.id
 LIMIT ? OFFSET ?
