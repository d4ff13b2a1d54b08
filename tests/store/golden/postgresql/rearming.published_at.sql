SELECT outbox_row.published_at
FROM outbox_row
WHERE outbox_row.id = %(id)s::BIGINT AND outbox_row.claim_token = %(token)s::UUID
