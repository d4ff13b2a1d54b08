UPDATE outbox_row SET status='pending', parked=0, visible_after=strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', claim_token=NULL, claimed_at=NULL, claimed_by=NULL, lease_until=NULL, published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL FROM (SELECT outbox_row.id AS id
FROM outbox_row JOIN (SELECT json_extract(claims_items.value, '$[0]') AS id, json_extract(claims_items.value, '$[1]') AS token
FROM json_each(?) AS claims_items) AS claims ON outbox_row.id = claims.id AND outbox_row.claim_token = claims.token ORDER BY outbox_row.id) AS locked WHERE outbox_row.id = locked.id
