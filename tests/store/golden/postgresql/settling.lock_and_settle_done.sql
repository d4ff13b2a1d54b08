WITH locked AS
(SELECT outbox_row.id AS id, outbox_row.task_id AS task_id, outbox_row.status AS status, outbox_row.claim_token AS claim_token, outbox_row.attempt AS attempt, outbox_row.failures AS failures, outbox_row.retries AS retries, outbox_row.max_attempts AS max_attempts, coalesce(outbox_row.published_at <= statement_timestamp() + make_interval(secs => -%(life)s), false) AS message_over, ids.done_as AS done_as, ids.note AS note
FROM outbox_row JOIN unnest(%(ids_id)s::BIGINT[], %(ids_done_as)s::TEXT[], %(ids_note)s::TEXT[]) AS ids(id, done_as, note) ON outbox_row.id = ids.id ORDER BY outbox_row.id FOR UPDATE OF outbox_row),
settled AS
(UPDATE outbox_row SET status='done', parked=false, vanished=0, silent=0, claim_token=NULL, claimed_at=NULL, claimed_by=NULL, lease_until=NULL, published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL, error=locked.note, settled_at=statement_timestamp() FROM locked WHERE outbox_row.id = locked.id AND locked.task_id = locked.done_as AND locked.status != 'done' AND locked.status != 'cancelled' RETURNING outbox_row.id)
 SELECT locked.id, locked.task_id, locked.status, locked.claim_token, locked.attempt, locked.failures, locked.retries, locked.max_attempts, locked.message_over, settled.id IS NOT NULL AS settled
FROM locked LEFT OUTER JOIN settled ON settled.id = locked.id
