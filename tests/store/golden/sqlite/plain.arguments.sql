SELECT outbox_row.id, outbox_row.args, outbox_row.kwargs
FROM outbox_row JOIN (SELECT json_extract(ids_items.value, '$[0]') AS id
FROM json_each(?) AS ids_items) AS ids ON outbox_row.id = ids.id
