DELETE FROM outbox_row WHERE outbox_row.id IN (SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.status = 'failed' AND outbox_row.namespace = %(wanted_namespace)s::VARCHAR AND outbox_row.task = %(wanted_task)s::VARCHAR AND outbox_row.workflow_id = %(wanted_workflow_id)s::VARCHAR AND (outbox_row.error LIKE '%%' || %(wanted_error)s::VARCHAR || '%%' ESCAPE '/') AND outbox_row.id IN (SELECT ids.id
FROM unnest(%(ids_id)s::BIGINT[]) AS ids(id)) ORDER BY outbox_row.id
 LIMIT %(limit)s::BIGINT FOR UPDATE OF outbox_row) RETURNING outbox_row.id
