SELECT outbox_once.row_id, outbox_once.task_id
FROM outbox_once
WHERE outbox_once.created_at < strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', -?)) || '000' AND (outbox_once.row_id, outbox_once.task_id) > (?, ?) ORDER BY outbox_once.row_id, outbox_once.task_id
 LIMIT ? OFFSET ?
