SELECT outbox_namespace.namespace, outbox_namespace.state
FROM outbox_namespace JOIN unnest(%(names_namespace)s::TEXT[]) AS names(namespace) ON outbox_namespace.namespace = names.namespace
