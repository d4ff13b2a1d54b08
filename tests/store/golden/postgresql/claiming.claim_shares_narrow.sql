WITH found AS
(SELECT taken.id AS id, taken.namespace AS namespace, taken.visible_after AS visible_after, taken.size AS size
FROM unnest(%(plan_namespace)s::TEXT[], %(plan_share)s::BIGINT[], %(plan_since)s::TIMESTAMP WITH TIME ZONE[]) AS plan(namespace, share, since) JOIN LATERAL (SELECT outbox_row.id AS id, outbox_row.namespace AS namespace, outbox_row.visible_after AS visible_after, length(outbox_row.body) + length(outbox_row.headers) + length(outbox_row.properties) AS size
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.namespace = plan.namespace AND outbox_row.visible_after <= statement_timestamp() AND outbox_row.visible_after >= plan.since AND outbox_row.id %% %(shards)s::BIGINT BETWEEN %(first_shard)s::BIGINT AND %(last_shard)s::BIGINT AND (outbox_row.workflow_id IS NULL OR (outbox_row.workflow_id NOT IN (SELECT workflows.value
FROM unnest(%(workflows_value)s::TEXT[]) AS workflows(value)))) AND (outbox_row.task NOT IN (SELECT tasks.value
FROM unnest(%(tasks_value)s::TEXT[]) AS tasks(value))) AND NOT (outbox_row.namespace IN (SELECT pinned.value
FROM unnest(%(pinned_value)s::TEXT[]) AS pinned(value)) AND ((outbox_row.namespace || ' ' || CASE WHEN (outbox_row.node IS NULL) THEN ':' || outbox_row.task_queue ELSE '@' || outbox_row.node END) NOT IN (SELECT openings.value
FROM unnest(%(openings_value)s::TEXT[]) AS openings(value)))) ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT plan.share FOR UPDATE OF outbox_row SKIP LOCKED) AS taken ON true),
fits AS
(SELECT measured.id AS id
FROM (SELECT rounds.id AS id, sum(rounds.size) OVER (ORDER BY rounds.turn, rounds.visible_after, rounds.id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - rounds.size AS before
FROM (SELECT found.id AS id, found.visible_after AS visible_after, found.size AS size, row_number() OVER (PARTITION BY found.namespace ORDER BY found.visible_after, found.id) AS turn
FROM found) AS rounds) AS measured
WHERE measured.before < %(max_bytes)s::BIGINT)
 UPDATE outbox_row SET status='claimed', claim_token=gen_random_uuid(), claimed_at=statement_timestamp(), claimed_by=%(by)s::UUID, lease_until=statement_timestamp() + make_interval(secs => %(lease)s), published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL FROM fits WHERE outbox_row.id = fits.id RETURNING outbox_row.id, outbox_row.claim_token, outbox_row.namespace, outbox_row.node, outbox_row.task, outbox_row.task_id, outbox_row.task_queue, outbox_row.exchange, outbox_row.routing_key, outbox_row.body, outbox_row.content_type, outbox_row.content_encoding, outbox_row.headers, outbox_row.properties, outbox_row.attempt, outbox_row.retries, outbox_row.settle_on, outbox_row.visible_after, coalesce(outbox_row.expires_at <= statement_timestamp(), false) AS expired
