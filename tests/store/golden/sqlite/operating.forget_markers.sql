DELETE FROM outbox_once WHERE (outbox_once.row_id, outbox_once.task_id) IN (SELECT keys.row_id, keys.task_id
FROM (SELECT json_extract(keys_items.value, '$[0]') AS row_id, json_extract(keys_items.value, '$[1]') AS task_id
FROM json_each(?) AS keys_items) AS keys)
