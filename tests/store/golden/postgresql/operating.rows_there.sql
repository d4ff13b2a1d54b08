SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.id IN (SELECT ids.id
FROM unnest(%(ids_id)s::BIGINT[]) AS ids(id))
