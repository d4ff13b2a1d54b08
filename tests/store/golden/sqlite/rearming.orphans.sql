SELECT outbox_row.id, outbox_row.claim_token, outbox_row.claimed_at, outbox_row.published_at, outbox_row.published_to, outbox_row.worker, outbox_row.started_at, outbox_row.vanished, outbox_row.silent
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.published_to = ? AND outbox_row.published_at < ? AND (outbox_row.worker IS NULL OR (outbox_row.worker NOT IN (SELECT live.worker
FROM (SELECT json_extract(live_items.value, '$[0]') AS worker
FROM json_each(?) AS live_items) AS live))) ORDER BY outbox_row.claimed_at
 LIMIT ? OFFSET ?
