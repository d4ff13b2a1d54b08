SELECT DISTINCT outbox_row.namespace, outbox_row.task_queue, outbox_row.node, outbox_row.published_to, outbox_row.worker
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.published_to IS NOT NULL AND (outbox_row.namespace IN (SELECT placed.value
FROM (SELECT json_extract(placed_items.value, '$[0]') AS value
FROM json_each(?) AS placed_items) AS placed) OR outbox_row.published_to IN (SELECT queues.value
FROM (SELECT json_extract(queues_items.value, '$[0]') AS value
FROM json_each(?) AS queues_items) AS queues))
