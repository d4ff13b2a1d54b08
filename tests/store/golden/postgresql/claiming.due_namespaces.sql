WITH active AS
(SELECT known.namespace AS namespace, known.since AS since
FROM (SELECT outbox_namespace.namespace AS namespace, %(since)s::TIMESTAMP WITH TIME ZONE AS since
FROM outbox_namespace
WHERE (outbox_namespace.namespace NOT IN (SELECT marks.namespace
FROM unnest(%(marks_namespace)s::TEXT[], %(marks_since)s::TIMESTAMP WITH TIME ZONE[]) AS marks(namespace, since))) UNION ALL SELECT marks.namespace AS namespace, marks.since AS since
FROM unnest(%(marks_namespace)s::TEXT[], %(marks_since)s::TIMESTAMP WITH TIME ZONE[]) AS marks(namespace, since)) AS known
WHERE EXISTS (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.namespace = known.namespace AND outbox_row.visible_after <= statement_timestamp() AND outbox_row.visible_after >= known.since) ORDER BY known.namespace <= %(turn)s::VARCHAR, known.namespace
 LIMIT %(limit)s::BIGINT)
 SELECT look.now, look.namespaces, look.governed, counted.namespace, counted.rows
FROM (SELECT statement_timestamp() AS now, (SELECT count(*) AS count_1
FROM outbox_namespace) AS namespaces, (SELECT (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced' OR outbox_namespace.max_in_flight IS NOT NULL)) OR (EXISTS (SELECT 1
FROM outbox_hold)) AS anon_1) AS governed) AS look LEFT OUTER JOIN (SELECT active.namespace AS namespace, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.namespace = active.namespace AND outbox_row.visible_after <= statement_timestamp() AND outbox_row.visible_after >= active.since
 LIMIT (SELECT (FLOOR(((%(limit)s::BIGINT + count(*)) - 1) / nullif(count(*), 0))) * 10 AS anon_2
FROM active)) AS "some") AS rows
FROM active) AS counted ON true ORDER BY counted.namespace <= %(turn)s::VARCHAR, counted.namespace
