SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.visible_after <= clock_timestamp() ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT %(param_1)s::INTEGER
