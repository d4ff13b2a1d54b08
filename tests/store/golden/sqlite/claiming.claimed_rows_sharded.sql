SELECT look.now, of_each.namespace, of_each.rows, of_each.oldest
FROM (SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' AS now) AS look LEFT OUTER JOIN (SELECT outbox_row.namespace AS namespace, count(*) AS rows, min(outbox_row.claimed_at) AS oldest
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.claimed_at >= ? AND outbox_row.id % ? BETWEEN ? AND ? GROUP BY outbox_row.namespace) AS of_each ON 1 = 1
