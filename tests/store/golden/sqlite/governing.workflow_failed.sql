SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.workflow_id = ? AND outbox_row.status = 'failed' ORDER BY outbox_row.ordinal, outbox_row.id
 LIMIT ? OFFSET ?
