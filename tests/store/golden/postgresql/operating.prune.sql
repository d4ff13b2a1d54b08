DELETE FROM outbox_row WHERE outbox_row.ctid = ANY (array((SELECT outbox_row.ctid
FROM outbox_row
WHERE outbox_row.status = 'done' AND outbox_row.settled_at < statement_timestamp() + make_interval(secs => -%(age)s) ORDER BY outbox_row.settled_at
 LIMIT %(limit)s::BIGINT FOR UPDATE SKIP LOCKED))) RETURNING outbox_row.id
