WITH seen AS
(SELECT head.id AS id, head.namespace AS namespace
FROM (SELECT outbox_namespace.namespace AS namespace
FROM outbox_namespace ORDER BY outbox_namespace.namespace <= %(turn)s::VARCHAR, outbox_namespace.namespace) AS known JOIN LATERAL (SELECT outbox_row.id AS id, outbox_row.namespace AS namespace
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.namespace = known.namespace AND outbox_row.visible_after <= statement_timestamp() ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT %(depth)s::BIGINT) AS head ON true
 LIMIT %(limit)s::BIGINT),
holds AS
(SELECT outbox_hold.scope AS scope, outbox_hold.value AS value
FROM outbox_hold FOR SHARE),
moved AS
(UPDATE outbox_row SET parked=true WHERE outbox_row.id = ANY (array((SELECT outbox_row.id
FROM outbox_row JOIN seen ON outbox_row.id = seen.id
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND coalesce(outbox_row.workflow_id IN (SELECT holds.value
FROM holds
WHERE holds.scope = 'workflow') OR outbox_row.namespace IN (SELECT holds.value
FROM holds
WHERE holds.scope = 'namespace') OR outbox_row.task IN (SELECT holds.value
FROM holds
WHERE holds.scope = 'task') OR outbox_row.namespace IN (SELECT unreadable.value
FROM unnest(%(unreadable_value)s::TEXT[]) AS unreadable(value)) OR outbox_row.namespace IN (SELECT pinned.value
FROM unnest(%(pinned_value)s::TEXT[]) AS pinned(value)) AND ((outbox_row.namespace || ' ' || CASE WHEN (outbox_row.node IS NULL) THEN ':' || outbox_row.task_queue ELSE '@' || outbox_row.node END) NOT IN (SELECT openings.value
FROM unnest(%(openings_value)s::TEXT[]) AS openings(value))), false) ORDER BY outbox_row.id FOR UPDATE OF outbox_row SKIP LOCKED))) RETURNING outbox_row.id)
 SELECT (SELECT count(*) AS count_1
FROM moved) AS moved, (SELECT count(*) AS count_2
FROM seen) AS seen, (SELECT seen.namespace
FROM seen ORDER BY seen.namespace <= %(turn)s::VARCHAR DESC, seen.namespace DESC
 LIMIT 1) AS turn
