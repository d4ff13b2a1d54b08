WITH minted AS
(INSERT INTO outbox_namespace (namespace, created_at) SELECT fresh.namespace AS namespace, clock_timestamp() AS anon_1
FROM unnest(%(fresh_namespace)s::TEXT[]) AS fresh(namespace)
WHERE CASE WHEN (EXISTS (SELECT 1
FROM outbox_namespace AS known
WHERE known.namespace = fresh.namespace)) THEN false ELSE pg_try_advisory_xact_lock(hashtextextended('outbox_namespace:' || fresh.namespace, 0)) END ORDER BY fresh.namespace ON CONFLICT DO NOTHING)
 INSERT INTO outbox_row (namespace, dispatch_key, content_hash, workflow_id, run_id, ordinal, task_queue, node, exchange, routing_key, task, task_id, body, content_type, content_encoding, headers, properties, retries, max_attempts, visible_after, expires_at, settle_on, created_at) VALUES (%(namespace)s::VARCHAR, %(dispatch_key)s::VARCHAR, %(content_hash)s, %(workflow_id)s::VARCHAR, %(run_id)s::VARCHAR, %(ordinal)s::BIGINT, %(task_queue)s::VARCHAR, %(node)s::VARCHAR, %(exchange)s::VARCHAR, %(routing_key)s::VARCHAR, %(task)s::VARCHAR, %(task_id)s::VARCHAR, %(body)s, %(content_type)s::VARCHAR, %(content_encoding)s::VARCHAR, %(headers)s, %(properties)s, %(retries)s::INTEGER, %(max_attempts)s::INTEGER, greatest(clock_timestamp(), coalesce(%(due_at)s::TIMESTAMP WITH TIME ZONE, clock_timestamp() + make_interval(secs => %(delay)s))), %(expires_at)s::TIMESTAMP WITH TIME ZONE, %(settle_on)s::VARCHAR, clock_timestamp()) ON CONFLICT DO NOTHING RETURNING outbox_row.id, outbox_row.namespace, outbox_row.dispatch_key, pg_notify('outbox_wake', '') AS pg_notify_1, (SELECT outbox_namespace.state
FROM outbox_namespace
WHERE outbox_namespace.namespace = "outbox_row".namespace) AS namespace_state
