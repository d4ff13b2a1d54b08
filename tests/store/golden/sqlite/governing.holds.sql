SELECT outbox_hold.scope, outbox_hold.value, outbox_hold.reason, outbox_hold.created_at, coalesce(counted.rows, 0) AS parked
FROM outbox_hold LEFT OUTER JOIN (SELECT 'workflow' AS scope, workflow_rows.value AS value, workflow_rows.rows AS rows
FROM (SELECT outbox_hold.value AS value, count(*) AS rows
FROM outbox_hold JOIN outbox_row ON outbox_row.workflow_id = outbox_hold.value
WHERE outbox_hold.scope = 'workflow' AND parked GROUP BY outbox_hold.value) AS workflow_rows UNION ALL SELECT 'namespace' AS scope, namespace_rows.value AS value, namespace_rows.rows AS rows
FROM (SELECT outbox_hold.value AS value, count(*) AS rows
FROM outbox_hold JOIN outbox_row ON outbox_row.namespace = outbox_hold.value
WHERE outbox_hold.scope = 'namespace' AND parked GROUP BY outbox_hold.value) AS namespace_rows UNION ALL SELECT 'task' AS scope, task_rows.value AS value, task_rows.rows AS rows
FROM (SELECT outbox_hold.value AS value, count(*) AS rows
FROM outbox_hold JOIN outbox_row ON outbox_row.task = outbox_hold.value
WHERE outbox_hold.scope = 'task' AND parked GROUP BY outbox_hold.value) AS task_rows) AS counted ON outbox_hold.scope = counted.scope AND counted.value = outbox_hold.value ORDER BY outbox_hold.created_at, outbox_hold.scope, outbox_hold.value
