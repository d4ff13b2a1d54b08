WITH found AS
(SELECT outbox_row.id AS id, outbox_row.visible_after AS visible_after, length(outbox_row.body) + length(outbox_row.headers) + length(outbox_row.properties) AS size
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.visible_after <= statement_timestamp() AND outbox_row.visible_after >= %(since)s::TIMESTAMP WITH TIME ZONE AND (SELECT count(*) AS count_1
FROM outbox_namespace) <= 1 AND NOT (SELECT (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced' OR outbox_namespace.max_in_flight IS NOT NULL)) OR (EXISTS (SELECT 1
FROM outbox_hold)) AS anon_2) ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT %(limit)s::BIGINT FOR UPDATE SKIP LOCKED),
fits AS
(SELECT measured.id AS id
FROM (SELECT found.id AS id, sum(found.size) OVER (ORDER BY found.visible_after, found.id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - found.size AS before
FROM found) AS measured
WHERE measured.before < %(max_bytes)s::BIGINT),
claimed AS
(UPDATE outbox_row SET status='claimed', claim_token=gen_random_uuid(), claimed_at=statement_timestamp(), claimed_by=%(by)s::UUID, lease_until=statement_timestamp() + make_interval(secs => %(lease)s), published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL FROM fits WHERE outbox_row.id = fits.id RETURNING outbox_row.id, outbox_row.claim_token, outbox_row.namespace, outbox_row.node, outbox_row.task, outbox_row.task_id, outbox_row.task_queue, outbox_row.exchange, outbox_row.routing_key, outbox_row.body, outbox_row.content_type, outbox_row.content_encoding, outbox_row.headers, outbox_row.properties, outbox_row.attempt, outbox_row.retries, outbox_row.settle_on, outbox_row.visible_after, coalesce(outbox_row.expires_at <= statement_timestamp(), false) AS expired)
 SELECT look.now, look.namespaces, look.governed, look.seen, claimed.id, claimed.claim_token, claimed.namespace, claimed.node, claimed.task, claimed.task_id, claimed.task_queue, claimed.exchange, claimed.routing_key, claimed.body, claimed.content_type, claimed.content_encoding, claimed.headers, claimed.properties, claimed.attempt, claimed.retries, claimed.settle_on, claimed.visible_after, claimed.expired
FROM (SELECT statement_timestamp() AS now, (SELECT count(*) AS count_1
FROM outbox_namespace) AS namespaces, (SELECT (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced' OR outbox_namespace.max_in_flight IS NOT NULL)) OR (EXISTS (SELECT 1
FROM outbox_hold)) AS anon_1) AS governed, (SELECT count(*) AS count_2
FROM found) AS seen) AS look LEFT OUTER JOIN claimed ON true
