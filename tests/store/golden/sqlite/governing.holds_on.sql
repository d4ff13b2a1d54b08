SELECT outbox_hold.scope, outbox_hold.value, outbox_hold.reason, outbox_hold.created_at, 0 AS parked
FROM outbox_hold
WHERE outbox_hold.scope = 'workflow' AND outbox_hold.value = ? OR outbox_hold.scope = 'namespace' AND outbox_hold.value = ? OR outbox_hold.scope = 'task' AND outbox_hold.value = ? ORDER BY outbox_hold.created_at
