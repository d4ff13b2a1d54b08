SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT ? OFFSET ?
