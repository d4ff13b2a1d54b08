INSERT INTO outbox_once (row_id, task_id, created_at) VALUES (%(row_id)s::BIGINT, %(task_id)s::VARCHAR, statement_timestamp()) ON CONFLICT DO NOTHING RETURNING outbox_once.row_id
