SELECT DISTINCT waiting.published_to
FROM (SELECT outbox_row.published_to AS published_to
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.claimed_at >= ? AND outbox_row.published_to IS NOT NULL AND outbox_row.worker IS NULL ORDER BY outbox_row.claimed_at
 LIMIT 20000 OFFSET ?) AS waiting
 LIMIT ? OFFSET ?
