INSERT INTO outbox_namespace (namespace, created_at) VALUES (?, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') ON CONFLICT DO NOTHING
