WITH active AS
(SELECT known.namespace AS namespace, known.since AS since
FROM (SELECT outbox_namespace.namespace AS namespace, ? AS since
FROM outbox_namespace
WHERE (outbox_namespace.namespace NOT IN (SELECT marks.namespace
FROM (SELECT json_extract(marks_items.value, '$[0]') AS namespace, json_extract(marks_items.value, '$[1]') AS since
FROM json_each(?) AS marks_items) AS marks)) AND (outbox_namespace.namespace NOT IN (SELECT closed.value
FROM (SELECT json_extract(closed_items.value, '$[0]') AS value
FROM json_each(?) AS closed_items) AS closed)) UNION ALL SELECT marks.namespace AS namespace, marks.since AS since
FROM (SELECT json_extract(marks_items.value, '$[0]') AS namespace, json_extract(marks_items.value, '$[1]') AS since
FROM json_each(?) AS marks_items) AS marks
WHERE (marks.namespace NOT IN (SELECT closed.value
FROM (SELECT json_extract(closed_items.value, '$[0]') AS value
FROM json_each(?) AS closed_items) AS closed))) AS known
WHERE EXISTS (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = known.namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND outbox_row.visible_after >= known.since AND outbox_row.id % ? BETWEEN ? AND ? AND (outbox_row.workflow_id IS NULL OR (outbox_row.workflow_id NOT IN (SELECT workflows.value
FROM (SELECT json_extract(workflows_items.value, '$[0]') AS value
FROM json_each(?) AS workflows_items) AS workflows))) AND (outbox_row.task NOT IN (SELECT tasks.value
FROM (SELECT json_extract(tasks_items.value, '$[0]') AS value
FROM json_each(?) AS tasks_items) AS tasks)) AND NOT (outbox_row.namespace IN (SELECT pinned.value
FROM (SELECT json_extract(pinned_items.value, '$[0]') AS value
FROM json_each(?) AS pinned_items) AS pinned) AND ((outbox_row.namespace || ' ' || CASE WHEN (outbox_row.node IS NULL) THEN ':' || outbox_row.task_queue ELSE '@' || outbox_row.node END) NOT IN (SELECT openings.value
FROM (SELECT json_extract(openings_items.value, '$[0]') AS value
FROM json_each(?) AS openings_items) AS openings)))) ORDER BY known.namespace <= ?, known.namespace
 LIMIT ? OFFSET ?)
 SELECT look.now, look.namespaces, look.governed, counted.namespace, counted.rows
FROM (SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AS now, (SELECT count(*) AS count_1
FROM outbox_namespace) AS namespaces, (SELECT (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced' OR outbox_namespace.max_in_flight IS NOT NULL)) OR (EXISTS (SELECT 1
FROM outbox_hold)) AS anon_1) AS governed) AS look LEFT OUTER JOIN (SELECT active.namespace AS namespace, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = active.namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND outbox_row.visible_after >= active.since AND outbox_row.id % ? BETWEEN ? AND ? AND (outbox_row.workflow_id IS NULL OR (outbox_row.workflow_id NOT IN (SELECT workflows.value
FROM (SELECT json_extract(workflows_items.value, '$[0]') AS value
FROM json_each(?) AS workflows_items) AS workflows))) AND (outbox_row.task NOT IN (SELECT tasks.value
FROM (SELECT json_extract(tasks_items.value, '$[0]') AS value
FROM json_each(?) AS tasks_items) AS tasks)) AND NOT (outbox_row.namespace IN (SELECT pinned.value
FROM (SELECT json_extract(pinned_items.value, '$[0]') AS value
FROM json_each(?) AS pinned_items) AS pinned) AND ((outbox_row.namespace || ' ' || CASE WHEN (outbox_row.node IS NULL) THEN ':' || outbox_row.task_queue ELSE '@' || outbox_row.node END) NOT IN (SELECT openings.value
FROM (SELECT json_extract(openings_items.value, '$[0]') AS value
FROM json_each(?) AS openings_items) AS openings)))
 LIMIT (SELECT (FLOOR(((? + count(*)) - 1) / nullif(count(*), 0))) * 10 AS anon_2
FROM active) OFFSET ?) AS some) AS rows
FROM active) AS counted ON 1 = 1 ORDER BY counted.namespace <= ?, counted.namespace
