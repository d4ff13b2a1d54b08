UPDATE outbox_row SET parked=0 FROM (SELECT outbox_row.id AS id
FROM outbox_row
WHERE parked AND outbox_row.id > ? AND outbox_row.id <= ? AND coalesce(outbox_row.workflow_id IN (SELECT outbox_hold.value
FROM outbox_hold
WHERE outbox_hold.scope = 'workflow') OR outbox_row.namespace IN (SELECT outbox_hold.value
FROM outbox_hold
WHERE outbox_hold.scope = 'namespace') OR outbox_row.task IN (SELECT outbox_hold.value
FROM outbox_hold
WHERE outbox_hold.scope = 'task') OR outbox_row.namespace IN (SELECT unreadable.value
FROM (SELECT json_extract(unreadable_items.value, '$[0]') AS value
FROM json_each(?) AS unreadable_items) AS unreadable) OR outbox_row.namespace IN (SELECT pinned.value
FROM (SELECT json_extract(pinned_items.value, '$[0]') AS value
FROM json_each(?) AS pinned_items) AS pinned) AND ((outbox_row.namespace || ' ' || CASE WHEN (outbox_row.node IS NULL) THEN ':' || outbox_row.task_queue ELSE '@' || outbox_row.node END) NOT IN (SELECT openings.value
FROM (SELECT json_extract(openings_items.value, '$[0]') AS value
FROM json_each(?) AS openings_items) AS openings)), 0) = 0 ORDER BY outbox_row.id) AS wanted WHERE outbox_row.id = wanted.id
