SELECT outbox_row.id, outbox_row.task_id, outbox_row.status, outbox_row.claim_token, outbox_row.attempt, outbox_row.failures, outbox_row.retries, outbox_row.max_attempts, coalesce(outbox_row.published_at <= strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', -?)) || '000', 0) AS message_over
FROM outbox_row JOIN (SELECT json_extract(ids_items.value, '$[0]') AS id
FROM json_each(?) AS ids_items) AS ids ON outbox_row.id = ids.id ORDER BY outbox_row.id
