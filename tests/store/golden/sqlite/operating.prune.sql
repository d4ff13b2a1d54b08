DELETE FROM outbox_row WHERE outbox_row.id IN (SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.status = 'done' AND outbox_row.settled_at < strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', -?)) || '000' ORDER BY outbox_row.settled_at
 LIMIT ? OFFSET ?) RETURNING id
