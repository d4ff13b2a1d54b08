DELETE FROM outbox_once WHERE (outbox_once.row_id, outbox_once.task_id) IN (SELECT keys.row_id, keys.task_id
FROM unnest(%(keys_row_id)s::BIGINT[], %(keys_task_id)s::TEXT[]) AS keys(row_id, task_id))
