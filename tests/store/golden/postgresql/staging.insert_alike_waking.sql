WITH minted AS
(INSERT INTO outbox_namespace (namespace, created_at) SELECT fresh.namespace AS namespace, clock_timestamp() AS anon_1
FROM unnest(%(fresh_namespace)s::TEXT[]) AS fresh(namespace)
WHERE CASE WHEN (EXISTS (SELECT 1
FROM outbox_namespace AS known
WHERE known.namespace = fresh.namespace)) THEN false ELSE pg_try_advisory_xact_lock(hashtextextended('outbox_namespace:' || fresh.namespace, 0)) END ORDER BY fresh.namespace ON CONFLICT DO NOTHING)
 INSERT INTO outbox_row (namespace, dispatch_key, content_hash, workflow_id, run_id, ordinal, task_queue, node, exchange, routing_key, task, task_id, body, content_type, content_encoding, headers, properties, retries, max_attempts, settle_on, visible_after, created_at) SELECT %(namespace)s::VARCHAR AS anon_2, rows.dispatch_key, rows.content_hash, %(workflow_id)s::VARCHAR AS anon_3, %(run_id)s::VARCHAR AS anon_4, rows.ordinal, %(task_queue)s::VARCHAR AS anon_5, %(node)s::VARCHAR AS anon_6, %(exchange)s::VARCHAR AS anon_7, %(routing_key)s::VARCHAR AS anon_8, %(task)s::VARCHAR AS anon_9, rows.task_id, rows.body, %(content_type)s::VARCHAR AS anon_10, %(content_encoding)s::VARCHAR AS anon_11, rows.headers, rows.properties, %(retries)s::INTEGER AS anon_12, %(max_attempts)s::INTEGER AS anon_13, %(settle_on)s::VARCHAR AS anon_14, clock_timestamp() AS anon_15, clock_timestamp() AS anon_16
FROM unnest(%(rows_dispatch_key)s::TEXT[], %(rows_content_hash)s::BYTEA[], %(rows_task_id)s::TEXT[], %(rows_body)s::BYTEA[], %(rows_headers)s::BYTEA[], %(rows_properties)s::BYTEA[], %(rows_ordinal)s::BIGINT[]) AS rows(dispatch_key, content_hash, task_id, body, headers, properties, ordinal) ON CONFLICT DO NOTHING RETURNING outbox_row.id, outbox_row.namespace, outbox_row.dispatch_key, pg_notify('outbox_wake', '') AS pg_notify_1, (SELECT outbox_namespace.state
FROM outbox_namespace
WHERE outbox_namespace.namespace = "outbox_row".namespace) AS namespace_state
