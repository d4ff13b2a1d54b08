WITH found AS
(SELECT numbered.id AS id, numbered.namespace AS namespace, numbered.visible_after AS visible_after, numbered.size AS size, numbered.share AS share, numbered.place AS place
FROM (SELECT outbox_row.id AS id, outbox_row.namespace AS namespace, outbox_row.visible_after AS visible_after, length(outbox_row.body) + length(outbox_row.headers) + length(outbox_row.properties) AS size, "plan".share AS share, row_number() OVER (PARTITION BY outbox_row.namespace ORDER BY outbox_row.visible_after, outbox_row.id) AS place
FROM (SELECT json_extract(plan_items.value, '$[0]') AS namespace, json_extract(plan_items.value, '$[1]') AS share, json_extract(plan_items.value, '$[2]') AS since
FROM json_each(?) AS plan_items) AS "plan" JOIN outbox_row ON outbox_row.id IN (SELECT other.id
FROM outbox_row AS other
WHERE other.status = 'pending' AND other.parked = 0 AND other.namespace = "plan".namespace AND other.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND other.visible_after >= "plan".since AND other.id % ? BETWEEN ? AND ? AND (other.workflow_id IS NULL OR (other.workflow_id NOT IN (SELECT workflows.value
FROM (SELECT json_extract(workflows_items.value, '$[0]') AS value
FROM json_each(?) AS workflows_items) AS workflows))) AND (other.task NOT IN (SELECT tasks.value
FROM (SELECT json_extract(tasks_items.value, '$[0]') AS value
FROM json_each(?) AS tasks_items) AS tasks)) AND NOT (other.namespace IN (SELECT pinned.value
FROM (SELECT json_extract(pinned_items.value, '$[0]') AS value
FROM json_each(?) AS pinned_items) AS pinned) AND ((other.namespace || ' ' || CASE WHEN (other.node IS NULL) THEN ':' || other.task_queue ELSE '@' || other.node END) NOT IN (SELECT openings.value
FROM (SELECT json_extract(openings_items.value, '$[0]') AS value
FROM json_each(?) AS openings_items) AS openings))) ORDER BY other.visible_after, other.id
 LIMIT ? OFFSET ?)) AS numbered
WHERE numbered.place <= numbered.share),
fits AS
(SELECT measured.id AS id
FROM (SELECT rounds.id AS id, sum(rounds.size) OVER (ORDER BY rounds.turn, rounds.visible_after, rounds.id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - rounds.size AS "before"
FROM (SELECT found.id AS id, found.visible_after AS visible_after, found.size AS size, row_number() OVER (PARTITION BY found.namespace ORDER BY found.visible_after, found.id) AS turn
FROM found) AS rounds) AS measured
WHERE measured."before" < ?)
 UPDATE outbox_row SET status='claimed', claim_token=lower(hex(randomblob(16))), claimed_at=strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', claimed_by=?, lease_until=strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', ?)) || '000', published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL FROM fits WHERE outbox_row.id = fits.id RETURNING id, claim_token, namespace, node, task, task_id, task_queue, exchange, routing_key, body, content_type, content_encoding, headers, properties, attempt, retries, settle_on, visible_after, coalesce(expires_at <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', 0) AS expired
