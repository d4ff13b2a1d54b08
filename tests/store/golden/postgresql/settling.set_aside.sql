INSERT INTO outbox_aside (row_id, kind, body, reason, created_at) VALUES (%(row_id)s::BIGINT, %(kind)s::VARCHAR, %(body)s, %(reason)s::VARCHAR, statement_timestamp()) RETURNING outbox_aside.id
