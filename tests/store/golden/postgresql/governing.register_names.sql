INSERT INTO outbox_namespace (namespace, created_at) SELECT fresh.namespace, clock_timestamp() AS anon_1
FROM unnest(%(fresh_namespace)s::TEXT[]) AS fresh(namespace)
WHERE CASE WHEN (EXISTS (SELECT 1
FROM outbox_namespace AS known
WHERE known.namespace = fresh.namespace)) THEN false ELSE pg_try_advisory_xact_lock(hashtextextended('outbox_namespace:' || fresh.namespace, 0)) END ORDER BY fresh.namespace ON CONFLICT DO NOTHING RETURNING outbox_namespace.namespace
