UPDATE outbox_row SET lease_until=strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', judged.lease)) || '000' FROM (SELECT json_extract(judged_items.value, '$[0]') AS id, json_extract(judged_items.value, '$[1]') AS lease
FROM json_each(?) AS judged_items) AS judged WHERE outbox_row.id = judged.id
