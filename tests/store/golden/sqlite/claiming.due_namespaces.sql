WITH active AS
(SELECT known.namespace AS namespace, known.since AS since
FROM (SELECT outbox_namespace.namespace AS namespace, ? AS since
FROM outbox_namespace
WHERE (outbox_namespace.namespace NOT IN (SELECT marks.namespace
FROM (SELECT json_extract(marks_items.value, '$[0]') AS namespace, json_extract(marks_items.value, '$[1]') AS since
FROM json_each(?) AS marks_items) AS marks)) UNION ALL SELECT marks.namespace AS namespace, marks.since AS since
FROM (SELECT json_extract(marks_items.value, '$[0]') AS namespace, json_extract(marks_items.value, '$[1]') AS since
FROM json_each(?) AS marks_items) AS marks) AS known
WHERE EXISTS (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = known.namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND outbox_row.visible_after >= known.since) ORDER BY known.namespace <= ?, known.namespace
 LIMIT ? OFFSET ?)
 SELECT look.now, look.namespaces, look.governed, counted.namespace, counted.rows
FROM (SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AS now, (SELECT count(*) AS count_1
FROM outbox_namespace) AS namespaces, (SELECT (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced' OR outbox_namespace.max_in_flight IS NOT NULL)) OR (EXISTS (SELECT 1
FROM outbox_hold)) AS anon_1) AS governed) AS look LEFT OUTER JOIN (SELECT active.namespace AS namespace, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = active.namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND outbox_row.visible_after >= active.since
 LIMIT (SELECT (FLOOR(((? + count(*)) - 1) / nullif(count(*), 0))) * 10 AS anon_2
FROM active) OFFSET ?) AS some) AS rows
FROM active) AS counted ON 1 = 1 ORDER BY counted.namespace <= ?, counted.namespace
