SELECT outbox_worker.instance, outbox_worker.hostname, outbox_worker.pool, outbox_worker.node, outbox_worker.namespaces, outbox_worker.queues, outbox_worker.held, outbox_worker.started_at, outbox_worker.last_seen_at, outbox_worker.last_seen_at + make_interval(secs => %(ttl)s) > statement_timestamp() AS live
FROM outbox_worker ORDER BY outbox_worker.last_seen_at DESC
