DELETE FROM outbox_once WHERE outbox_once.row_id IN (SELECT ids.id
FROM unnest(%(ids_id)s::BIGINT[]) AS ids(id))
