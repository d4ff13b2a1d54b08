WITH RECURSIVE names(name) AS
(SELECT min(outbox_row.namespace) AS name
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 UNION ALL SELECT (SELECT min(outbox_row.namespace) AS min_1
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace > names.name) AS anon_1
FROM names
WHERE names.name IS NOT NULL)
 SELECT names.name
FROM names
WHERE names.name IS NOT NULL AND NOT (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.namespace = names.name)) ORDER BY names.name
