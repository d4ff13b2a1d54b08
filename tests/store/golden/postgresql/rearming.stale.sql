WITH found AS
(SELECT outbox_row.id AS id, outbox_row.claim_token AS claim_token, outbox_row.claimed_at AS claimed_at, outbox_row.published_at AS published_at, outbox_row.published_to AS published_to, outbox_row.worker AS worker, outbox_row.started_at AS started_at, outbox_row.vanished AS vanished, outbox_row.silent AS silent
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.claimed_at >= %(since)s::TIMESTAMP WITH TIME ZONE AND outbox_row.lease_until < statement_timestamp() ORDER BY outbox_row.claimed_at
 LIMIT %(limit)s::BIGINT FOR UPDATE SKIP LOCKED)
 SELECT look.now, look.oldest, found.id, found.claim_token, found.claimed_at, found.published_at, found.published_to, found.worker, found.started_at, found.vanished, found.silent
FROM (SELECT statement_timestamp() AS now, (SELECT min(outbox_row.claimed_at) AS min_1
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.claimed_at >= %(since)s::TIMESTAMP WITH TIME ZONE) AS oldest) AS look LEFT OUTER JOIN found ON true
