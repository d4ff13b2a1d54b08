SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT %(param_1)s::INTEGER
