SELECT count(*) FILTER (WHERE outbox_row.status = 'pending') AS pending, count(*) FILTER (WHERE outbox_row.status = 'claimed') AS claimed, count(*) FILTER (WHERE outbox_row.status = 'done') AS done, count(*) FILTER (WHERE outbox_row.status = 'failed') AS failed, count(*) FILTER (WHERE outbox_row.status = 'cancelled') AS cancelled, count(*) FILTER (WHERE outbox_row.status = 'pending' AND outbox_row.parked) AS parked, min(outbox_row.created_at) AS created_at, min(CASE WHEN (outbox_row.status = 'pending') THEN outbox_row.created_at END) AS oldest_pending_at, max(outbox_row.settled_at) AS last_settled_at, EXISTS (SELECT 1
FROM outbox_hold
WHERE outbox_hold.scope = 'workflow' AND outbox_hold.value = %(name)s::VARCHAR) AS held
FROM outbox_row
WHERE outbox_row.workflow_id = %(name)s::VARCHAR
