WITH locked AS
(SELECT outbox_row.id AS id, claims."to" AS "to"
FROM outbox_row JOIN unnest(%(claims_id)s::BIGINT[], %(claims_token)s::UUID[], %(claims_to)s::TEXT[]) AS claims(id, token, "to") ON outbox_row.id = claims.id AND outbox_row.claim_token = claims.token ORDER BY outbox_row.id FOR UPDATE OF outbox_row)
 UPDATE outbox_row SET status=CASE WHEN (outbox_row.started_at IS NULL) THEN 'claimed' ELSE outbox_row.status END, parked=CASE WHEN (outbox_row.started_at IS NULL) THEN false ELSE outbox_row.parked END, lease_until=CASE WHEN (outbox_row.started_at IS NULL) THEN statement_timestamp() + make_interval(secs => %(lease)s) ELSE outbox_row.lease_until END, published_at=statement_timestamp(), published_to=locked."to", error=NULL FROM locked WHERE outbox_row.id = locked.id
