SELECT outbox_row.id, outbox_row.task_id, outbox_row.worker, outbox_row.published_to, outbox_row.status, outbox_row.claim_token
FROM outbox_row
WHERE outbox_row.status IN ('pending', 'claimed') AND outbox_row.workflow_id = %(wanted_workflow_id)s::VARCHAR AND outbox_row.id IN (SELECT ids.id
FROM unnest(%(ids_id)s::BIGINT[]) AS ids(id)) ORDER BY outbox_row.id
 LIMIT %(limit)s::BIGINT FOR UPDATE OF outbox_row
