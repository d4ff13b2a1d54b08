SELECT outbox_meta.id
FROM outbox_meta
WHERE outbox_meta.id = 1 FOR UPDATE
