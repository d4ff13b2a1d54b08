WITH locked AS
(SELECT outbox_row.id AS id
FROM outbox_row JOIN unnest(%(claims_id)s::BIGINT[], %(claims_token)s::UUID[]) AS claims(id, token) ON outbox_row.id = claims.id AND outbox_row.claim_token = claims.token ORDER BY outbox_row.id FOR UPDATE OF outbox_row)
 UPDATE outbox_row SET status='pending', parked=false, visible_after=statement_timestamp(), claim_token=NULL, claimed_at=NULL, claimed_by=NULL, lease_until=NULL, published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL FROM locked WHERE outbox_row.id = locked.id
