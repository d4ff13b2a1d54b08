SELECT 'namespace' AS kind, outbox_namespace.namespace AS name, outbox_namespace.placement AS word, outbox_namespace.nodes AS items, outbox_namespace.max_in_flight AS number, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced' OR outbox_namespace.max_in_flight IS NOT NULL UNION ALL SELECT 'hold', outbox_hold.value, outbox_hold.scope, CAST(NULL AS TEXT) AS anon_1, CAST(NULL AS INTEGER) AS anon__1, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS anon__2
FROM outbox_hold UNION ALL SELECT 'worker', CAST(outbox_worker.instance AS TEXT) AS instance, CAST(NULL AS TEXT) AS anon_1, outbox_worker.queues, CAST(NULL AS INTEGER) AS anon__1, outbox_worker.last_seen_at
FROM outbox_worker
WHERE (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced')) AND outbox_worker.last_seen_at > statement_timestamp() + make_interval(secs => -%(known)s) UNION ALL SELECT 'read', CAST(NULL AS TEXT) AS anon_1, CAST(NULL AS TEXT) AS anon__3, CAST(NULL AS TEXT) AS anon__4, CAST(NULL AS INTEGER) AS anon__5, max(outbox_relay.applied_at) AS max_1
FROM outbox_relay UNION ALL SELECT 'now', CAST(NULL AS TEXT) AS anon_1, CAST(NULL AS TEXT) AS anon__3, CAST(NULL AS TEXT) AS anon__4, CAST(NULL AS INTEGER) AS anon__5, statement_timestamp() AS anon_2
