SELECT (SELECT count(*) AS count_1
FROM (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.namespace = %(namespace)s::VARCHAR AND outbox_row.visible_after <= %(at)s::TIMESTAMP WITH TIME ZONE AND (outbox_row.visible_after < %(at)s::TIMESTAMP WITH TIME ZONE OR outbox_row.visible_after = %(at)s::TIMESTAMP WITH TIME ZONE AND outbox_row.id < %(id)s::BIGINT)
 LIMIT %(most)s::BIGINT) AS "some") AS ahead, (SELECT count(*) AS count_2
FROM outbox_namespace
WHERE outbox_namespace.namespace != %(namespace)s::VARCHAR AND (EXISTS (SELECT 1
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.namespace = outbox_namespace.namespace AND outbox_row.visible_after <= statement_timestamp()))) AS others
