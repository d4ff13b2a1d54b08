WITH active AS
(SELECT found.namespace AS namespace, found.since AS since
FROM (SELECT after_due.namespace AS namespace, after_due.since AS since
FROM (SELECT "after".namespace AS namespace, "after".since AS since
FROM (SELECT outbox_namespace.namespace AS namespace, ? AS since
FROM outbox_namespace
WHERE (outbox_namespace.namespace NOT IN (SELECT marks.namespace
FROM (SELECT json_extract(marks_items.value, '$[0]') AS namespace, json_extract(marks_items.value, '$[1]') AS since
FROM json_each(?) AS marks_items) AS marks)) AND outbox_namespace.namespace > ?) AS "after"
WHERE (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = "after".namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND outbox_row.visible_after >= "after".since ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT 1 OFFSET ?) IS NOT NULL ORDER BY "after".namespace
 LIMIT ? OFFSET ?) AS after_due UNION ALL SELECT upto_due.namespace AS namespace, upto_due.since AS since
FROM (SELECT upto.namespace AS namespace, upto.since AS since
FROM (SELECT outbox_namespace.namespace AS namespace, ? AS since
FROM outbox_namespace
WHERE (outbox_namespace.namespace NOT IN (SELECT marks.namespace
FROM (SELECT json_extract(marks_items.value, '$[0]') AS namespace, json_extract(marks_items.value, '$[1]') AS since
FROM json_each(?) AS marks_items) AS marks)) AND outbox_namespace.namespace <= ?) AS upto
WHERE (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = upto.namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND outbox_row.visible_after >= upto.since ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT 1 OFFSET ?) IS NOT NULL ORDER BY upto.namespace
 LIMIT ? OFFSET ?) AS upto_due UNION ALL SELECT marked_due.namespace AS namespace, marked_due.since AS since
FROM (SELECT marked.namespace AS namespace, marked.since AS since
FROM (SELECT marks.namespace AS namespace, marks.since AS since
FROM (SELECT json_extract(marks_items.value, '$[0]') AS namespace, json_extract(marks_items.value, '$[1]') AS since
FROM json_each(?) AS marks_items) AS marks) AS marked
WHERE (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = marked.namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND outbox_row.visible_after >= marked.since ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT 1 OFFSET ?) IS NOT NULL ORDER BY marked.namespace
 LIMIT ? OFFSET ?) AS marked_due) AS found ORDER BY found.namespace <= ?, found.namespace
 LIMIT ? OFFSET ?)
 SELECT look.now, look.namespaces, look.governed, counted.namespace, counted.rows
FROM (SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AS now, (SELECT count(*) AS count_1
FROM outbox_namespace) AS namespaces, (SELECT (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced' OR outbox_namespace.max_in_flight IS NOT NULL)) OR (EXISTS (SELECT 1
FROM outbox_hold)) AS anon_1) AS governed) AS look LEFT OUTER JOIN (SELECT active.namespace AS namespace, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = active.namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AND outbox_row.visible_after >= active.since ORDER BY outbox_row.visible_after, outbox_row.id
 LIMIT (SELECT (FLOOR(((? + count(*)) - 1) / nullif(count(*), 0))) * 10 AS anon_2
FROM active) OFFSET ?) AS some) AS rows
FROM active) AS counted ON 1 = 1 ORDER BY counted.namespace <= ?, counted.namespace
