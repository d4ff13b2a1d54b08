SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.workflow_id = %(name)s::VARCHAR AND outbox_row.status = 'failed' ORDER BY outbox_row.ordinal, outbox_row.id
 LIMIT %(param_1)s::INTEGER
