UPDATE outbox_row SET status='cancelled', error=?, settled_at=strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' WHERE outbox_row.id IN (SELECT ids.id
FROM (SELECT json_extract(ids_items.value, '$[0]') AS id
FROM json_each(?) AS ids_items) AS ids)
