UPDATE outbox_row SET error=(coalesce(outbox_row.error || '; ', '') || ids.note) FROM (SELECT json_extract(ids_items.value, '$[0]') AS id, json_extract(ids_items.value, '$[1]') AS note
FROM json_each(?) AS ids_items) AS ids WHERE outbox_row.id = ids.id AND instr(coalesce(outbox_row.error, ''), ids.note) = 0
