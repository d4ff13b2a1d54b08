SELECT outbox_namespace.namespace, outbox_namespace.state
FROM outbox_namespace JOIN (SELECT json_extract(names_items.value, '$[0]') AS namespace
FROM json_each(?) AS names_items) AS names ON outbox_namespace.namespace = names.namespace
