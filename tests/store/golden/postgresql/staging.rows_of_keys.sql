SELECT outbox_row.id, outbox_row.namespace, outbox_row.dispatch_key, outbox_row.task_id, outbox_row.content_hash
FROM outbox_row JOIN unnest(%(keys_namespace)s::TEXT[], %(keys_dispatch_key)s::TEXT[]) AS keys(namespace, dispatch_key) ON outbox_row.namespace = keys.namespace AND outbox_row.dispatch_key = keys.dispatch_key
