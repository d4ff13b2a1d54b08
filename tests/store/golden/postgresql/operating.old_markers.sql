SELECT outbox_once.row_id, outbox_once.task_id
FROM outbox_once
WHERE outbox_once.created_at < statement_timestamp() + make_interval(secs => -%(age)s) AND (outbox_once.row_id, outbox_once.task_id) > (%(row_id)s::BIGINT, %(task_id)s::VARCHAR) ORDER BY outbox_once.row_id, outbox_once.task_id
 LIMIT %(limit)s::BIGINT
