SELECT outbox_row.id, outbox_row.namespace, outbox_row.dispatch_key, outbox_row.task_id, outbox_row.content_hash
FROM outbox_row JOIN (SELECT json_extract(keys_items.value, '$[0]') AS namespace, json_extract(keys_items.value, '$[1]') AS dispatch_key
FROM json_each(?) AS keys_items) AS keys ON outbox_row.namespace = keys.namespace AND outbox_row.dispatch_key = keys.dispatch_key
