SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.id IN (SELECT ids.id
FROM (SELECT json_extract(ids_items.value, '$[0]') AS id
FROM json_each(?) AS ids_items) AS ids)
