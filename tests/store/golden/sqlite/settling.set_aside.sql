INSERT INTO outbox_aside (row_id, kind, body, reason, created_at) VALUES (?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
