WITH chosen AS
(SELECT outbox_row.id AS id
FROM outbox_row
WHERE outbox_row.status = 'failed' AND outbox_row.namespace = %(wanted_namespace)s::VARCHAR AND outbox_row.task = %(wanted_task)s::VARCHAR AND outbox_row.workflow_id = %(wanted_workflow_id)s::VARCHAR AND (outbox_row.error LIKE '%%' || %(wanted_error)s::VARCHAR || '%%' ESCAPE '/') AND outbox_row.id IN (SELECT ids.id
FROM unnest(%(ids_id)s::BIGINT[]) AS ids(id)) ORDER BY outbox_row.id
 LIMIT %(limit)s::BIGINT FOR UPDATE OF outbox_row)
 UPDATE outbox_row SET status='pending', attempt=0, failures=0, retries=0, rearms=0, vanished=0, silent=0, visible_after=statement_timestamp(), claim_token=NULL, claimed_at=NULL, claimed_by=NULL, lease_until=NULL, published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL, settled_at=NULL FROM chosen WHERE outbox_row.id = chosen.id
