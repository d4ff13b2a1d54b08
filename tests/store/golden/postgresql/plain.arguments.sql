SELECT outbox_row.id, outbox_row.args, outbox_row.kwargs
FROM outbox_row JOIN unnest(%(ids_id)s::BIGINT[]) AS ids(id) ON outbox_row.id = ids.id
