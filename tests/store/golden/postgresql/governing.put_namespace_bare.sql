INSERT INTO outbox_namespace (namespace, created_at) VALUES (%(name)s::VARCHAR, statement_timestamp()) ON CONFLICT DO NOTHING
