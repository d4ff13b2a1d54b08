UPDATE outbox_row SET status='cancelled', error=%(reason)s::VARCHAR, settled_at=statement_timestamp() WHERE outbox_row.id IN (SELECT ids.id
FROM unnest(%(ids_id)s::BIGINT[]) AS ids(id))
