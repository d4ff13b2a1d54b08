SELECT count(*) AS rows, max(page.id) AS last
FROM (SELECT outbox_row.id AS id
FROM outbox_row
WHERE parked AND outbox_row.id > %(after)s::BIGINT ORDER BY outbox_row.id
 LIMIT %(limit)s::BIGINT) AS page
