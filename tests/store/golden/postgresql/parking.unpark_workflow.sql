UPDATE outbox_row SET parked=false WHERE outbox_row.id = ANY (array((SELECT outbox_row.id
FROM outbox_row
WHERE parked AND outbox_row.workflow_id = %(value)s::VARCHAR ORDER BY outbox_row.id
 LIMIT %(limit)s::BIGINT FOR UPDATE OF outbox_row)))
