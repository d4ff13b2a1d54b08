SELECT outbox_row.id, outbox_row.claim_token, outbox_row.claimed_at, outbox_row.published_at, outbox_row.published_to, outbox_row.worker, outbox_row.started_at, outbox_row.vanished, outbox_row.silent
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.published_to = %(queue)s::VARCHAR AND outbox_row.published_at < %(before)s::TIMESTAMP WITH TIME ZONE AND (outbox_row.worker IS NULL OR (outbox_row.worker NOT IN (SELECT live.worker
FROM unnest(%(live_worker)s::TEXT[]) AS live(worker)))) ORDER BY outbox_row.claimed_at
 LIMIT %(limit)s::BIGINT FOR UPDATE SKIP LOCKED
