UPDATE outbox_row SET parked=false WHERE outbox_row.id = ANY (array((SELECT outbox_row.id
FROM outbox_row
WHERE parked AND outbox_row.id > %(after)s::BIGINT AND outbox_row.id <= %(last)s::BIGINT AND NOT coalesce(outbox_row.workflow_id IN (SELECT outbox_hold.value
FROM outbox_hold
WHERE outbox_hold.scope = 'workflow') OR outbox_row.namespace IN (SELECT outbox_hold.value
FROM outbox_hold
WHERE outbox_hold.scope = 'namespace') OR outbox_row.task IN (SELECT outbox_hold.value
FROM outbox_hold
WHERE outbox_hold.scope = 'task') OR outbox_row.namespace IN (SELECT unreadable.value
FROM unnest(%(unreadable_value)s::TEXT[]) AS unreadable(value)) OR outbox_row.namespace IN (SELECT pinned.value
FROM unnest(%(pinned_value)s::TEXT[]) AS pinned(value)) AND ((outbox_row.namespace || ' ' || CASE WHEN (outbox_row.node IS NULL) THEN ':' || outbox_row.task_queue ELSE '@' || outbox_row.node END) NOT IN (SELECT openings.value
FROM unnest(%(openings_value)s::TEXT[]) AS openings(value))), false) ORDER BY outbox_row.id FOR UPDATE OF outbox_row SKIP LOCKED)))
