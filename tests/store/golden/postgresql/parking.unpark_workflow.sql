WITH wanted AS
(SELECT outbox_row.id AS id
FROM outbox_row
WHERE parked AND outbox_row.workflow_id = %(value)s::VARCHAR ORDER BY outbox_row.id
 LIMIT %(limit)s::BIGINT FOR UPDATE OF outbox_row)
 UPDATE outbox_row SET parked=false FROM wanted WHERE outbox_row.id = wanted.id
