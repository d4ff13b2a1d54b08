SELECT 'namespace' AS kind, outbox_namespace.namespace AS name, outbox_namespace.placement AS word, outbox_namespace.nodes AS items, outbox_namespace.max_in_flight AS number, CAST(NULL AS DATETIME) AS at
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced' OR outbox_namespace.max_in_flight IS NOT NULL UNION ALL SELECT 'hold', outbox_hold.value, outbox_hold.scope, CAST(NULL AS TEXT) AS anon_1, CAST(NULL AS INTEGER) AS anon__1, CAST(NULL AS DATETIME) AS anon__2
FROM outbox_hold UNION ALL SELECT 'worker', CAST(outbox_worker.instance AS TEXT) AS instance, CAST(NULL AS TEXT) AS anon_1, outbox_worker.queues, CAST(NULL AS INTEGER) AS anon__1, outbox_worker.last_seen_at
FROM outbox_worker
WHERE (EXISTS (SELECT 1
FROM outbox_namespace
WHERE outbox_namespace.placement != 'unplaced')) AND outbox_worker.last_seen_at > strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', -?)) || '000' UNION ALL SELECT 'read', CAST(NULL AS TEXT) AS anon_1, CAST(NULL AS TEXT) AS anon__3, CAST(NULL AS TEXT) AS anon__4, CAST(NULL AS INTEGER) AS anon__5, max(outbox_relay.applied_at) AS max_1
FROM outbox_relay UNION ALL SELECT 'now', CAST(NULL AS TEXT) AS anon_1, CAST(NULL AS TEXT) AS anon__3, CAST(NULL AS TEXT) AS anon__4, CAST(NULL AS INTEGER) AS anon__5, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AS anon_2
