UPDATE outbox_row SET status='cancelled', parked=0, claim_token=NULL, claimed_at=NULL, claimed_by=NULL, lease_until=NULL, published_at=NULL, published_to=NULL, started_at=NULL, worker=NULL, error=?, settled_at=strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' FROM (SELECT json_extract(ids_items.value, '$[0]') AS id
FROM json_each(?) AS ids_items) AS ids WHERE outbox_row.id = ids.id
