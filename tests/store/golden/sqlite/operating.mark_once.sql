INSERT INTO outbox_once (row_id, task_id, created_at) VALUES (?, ?, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') ON CONFLICT DO NOTHING RETURNING row_id
