INSERT INTO outbox_namespace (namespace, created_at) SELECT fresh.namespace, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AS anon_1
FROM (SELECT json_extract(fresh_items.value, '$[0]') AS namespace
FROM json_each(?) AS fresh_items) AS fresh
WHERE 1 = 1 ON CONFLICT DO NOTHING RETURNING namespace
