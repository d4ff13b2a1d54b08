SELECT outbox_row.id, outbox_row.namespace, outbox_row.task_queue, outbox_row.node, outbox_row.claim_token, outbox_row.worker, outbox_row.status
FROM outbox_row JOIN unnest(%(asked_id)s::BIGINT[]) AS asked(id) ON outbox_row.id = asked.id
