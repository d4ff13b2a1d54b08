SELECT outbox_row.published_at
FROM outbox_row
WHERE outbox_row.id = ? AND outbox_row.claim_token = ?
