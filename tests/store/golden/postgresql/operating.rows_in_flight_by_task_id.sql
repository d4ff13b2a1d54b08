SELECT outbox_row.id, outbox_row.namespace, outbox_row.dispatch_key, outbox_row.workflow_id, outbox_row.run_id, outbox_row.ordinal, outbox_row.task_queue, outbox_row.node, outbox_row.exchange, outbox_row.routing_key, outbox_row.task, outbox_row.task_id, outbox_row.content_type, outbox_row.content_encoding, outbox_row.status, outbox_row.parked, outbox_row.attempt, outbox_row.failures, outbox_row.retries, outbox_row.max_attempts, outbox_row.rearms, outbox_row.vanished, outbox_row.silent, outbox_row.visible_after, outbox_row.expires_at, outbox_row.claim_token, outbox_row.claimed_at, outbox_row.claimed_by, outbox_row.lease_until, outbox_row.published_at, outbox_row.published_to, outbox_row.started_at, outbox_row.worker, outbox_row.error, outbox_row.settle_on, outbox_row.created_at, outbox_row.settled_at, length(outbox_row.body) AS body_bytes, outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.visible_after <= statement_timestamp() AS due
FROM outbox_row
WHERE outbox_row.id IN (SELECT found.id
FROM (SELECT part_0.id AS id
FROM (SELECT outbox_row.id AS id
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.task_id = %(key)s::VARCHAR) AS part_0 UNION ALL SELECT part_1.id AS id
FROM (SELECT outbox_row.id AS id
FROM outbox_row
WHERE parked AND outbox_row.task_id = %(key)s::VARCHAR) AS part_1 UNION ALL SELECT part_2.id AS id
FROM (SELECT outbox_row.id AS id
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.task_id = %(key)s::VARCHAR) AS part_2 UNION ALL SELECT part_3.id AS id
FROM (SELECT outbox_row.id AS id
FROM outbox_row
WHERE outbox_row.status = 'failed' AND outbox_row.task_id = %(key)s::VARCHAR) AS part_3) AS found) ORDER BY outbox_row.id
