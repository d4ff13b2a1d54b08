SELECT (SELECT min(outbox_row.visible_after) AS min_1
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked) AS due, statement_timestamp() AS now
