SELECT (SELECT count(*) AS count_1
FROM (SELECT 1 AS one
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = ? AND outbox_row.visible_after <= ? AND (outbox_row.visible_after < ? OR outbox_row.visible_after = ? AND outbox_row.id < ?)
 LIMIT ? OFFSET ?) AS some) AS ahead, (SELECT count(*) AS count_2
FROM outbox_namespace
WHERE outbox_namespace.namespace != ? AND (EXISTS (SELECT 1
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked = 0 AND outbox_row.namespace = outbox_namespace.namespace AND outbox_row.visible_after <= strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'))) AS others
