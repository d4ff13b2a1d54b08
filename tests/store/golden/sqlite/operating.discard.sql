DELETE FROM outbox_row WHERE outbox_row.id IN (SELECT outbox_row.id
FROM outbox_row
WHERE outbox_row.status = 'failed' AND outbox_row.namespace = ? AND outbox_row.task = ? AND outbox_row.workflow_id = ? AND (outbox_row.error LIKE '%' || ? || '%' ESCAPE '/') AND outbox_row.id IN (SELECT ids.id
FROM (SELECT json_extract(ids_items.value, '$[0]') AS id
FROM json_each(?) AS ids_items) AS ids) ORDER BY outbox_row.id
 LIMIT ? OFFSET ?) RETURNING id
