SELECT outbox_namespace.namespace
FROM outbox_namespace
WHERE outbox_namespace.max_in_flight >= 0 OR outbox_namespace.placement = 'pinned'
 LIMIT 1 OFFSET ?
