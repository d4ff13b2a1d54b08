SELECT outbox_namespace.namespace, outbox_namespace.placement, outbox_namespace.nodes, outbox_namespace.max_in_flight, outbox_namespace.state, outbox_namespace.created_at, outbox_namespace.last_seen_at, coalesce(claimed_rows.rows, 0) AS in_flight, coalesce(open_rows.rows, 0) AS due, coalesce(parked_rows.rows, 0) AS parked, open_rows.oldest AS oldest_due_at, EXISTS (SELECT 1
FROM outbox_hold
WHERE outbox_hold.scope = 'namespace' AND outbox_hold.value = outbox_namespace.namespace) AS held
FROM outbox_namespace LEFT OUTER JOIN (SELECT outbox_row.namespace AS namespace, count(*) AS rows, min(outbox_row.visible_after) AS oldest
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.visible_after <= statement_timestamp() GROUP BY outbox_row.namespace) AS open_rows ON open_rows.namespace = outbox_namespace.namespace LEFT OUTER JOIN (SELECT outbox_row.namespace AS namespace, count(*) AS rows
FROM outbox_row
WHERE outbox_row.status = 'claimed' GROUP BY outbox_row.namespace) AS claimed_rows ON claimed_rows.namespace = outbox_namespace.namespace LEFT OUTER JOIN (SELECT outbox_row.namespace AS namespace, count(*) AS rows
FROM outbox_row
WHERE parked GROUP BY outbox_row.namespace) AS parked_rows ON parked_rows.namespace = outbox_namespace.namespace ORDER BY outbox_namespace.namespace
