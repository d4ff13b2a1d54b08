SELECT outbox_row.id, outbox_row.namespace, outbox_row.task_queue, outbox_row.node, outbox_row.claim_token, outbox_row.worker, outbox_row.status
FROM outbox_row JOIN (SELECT json_extract(asked_items.value, '$[0]') AS id
FROM json_each(?) AS asked_items) AS asked ON outbox_row.id = asked.id
