SELECT DISTINCT outbox_row.namespace, outbox_row.task_queue, outbox_row.node, outbox_row.published_to, outbox_row.worker
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.published_to IS NOT NULL AND (outbox_row.namespace IN (SELECT placed.value
FROM unnest(%(placed_value)s::TEXT[]) AS placed(value)) OR outbox_row.published_to IN (SELECT queues.value
FROM unnest(%(queues_value)s::TEXT[]) AS queues(value)))
