SELECT look.now, of_each.namespace, of_each.rows, of_each.oldest
FROM (SELECT statement_timestamp() AS now) AS look LEFT OUTER JOIN (SELECT outbox_row.namespace AS namespace, count(*) AS rows, min(outbox_row.claimed_at) AS oldest
FROM outbox_row
WHERE outbox_row.status = 'claimed' AND outbox_row.claimed_at >= %(since)s::TIMESTAMP WITH TIME ZONE AND outbox_row.id %% %(shards)s::BIGINT BETWEEN %(first_shard)s::BIGINT AND %(last_shard)s::BIGINT GROUP BY outbox_row.namespace) AS of_each ON true
