SELECT (SELECT min(outbox_row.visible_after) AS min_1
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0) AS due, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AS now
