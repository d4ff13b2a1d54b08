SELECT outbox_row.run_id
FROM outbox_row
WHERE outbox_row.workflow_id = %(name)s::VARCHAR AND outbox_row.run_id IS NOT NULL GROUP BY outbox_row.run_id ORDER BY max(outbox_row.id) DESC
 LIMIT %(param_1)s::INTEGER
