UPDATE outbox_row SET parked=0 FROM (SELECT outbox_row.id AS id
FROM outbox_row
WHERE parked AND (outbox_row.namespace || '') = ? ORDER BY outbox_row.id
 LIMIT ? OFFSET ?) AS wanted WHERE outbox_row.id = wanted.id
