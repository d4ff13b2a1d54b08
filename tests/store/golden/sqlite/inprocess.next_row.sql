SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT ? OFFSET ?
