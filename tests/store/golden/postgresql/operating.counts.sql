SELECT (SELECT count(*) AS count_1
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.visible_after <= statement_timestamp()) AS due, (SELECT count(*) AS count_2
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked AND outbox_row.visible_after > statement_timestamp()) AS delayed, (SELECT count(*) AS count_3
FROM outbox_row
WHERE outbox_row.status = 'pending' AND outbox_row.parked) AS parked, (SELECT count(*) AS count_4
FROM outbox_row
WHERE outbox_row.status = 'claimed') AS claimed, (SELECT count(*) AS count_5
FROM outbox_row
WHERE outbox_row.status = 'done') AS done, (SELECT count(*) AS count_6
FROM outbox_row
WHERE outbox_row.status = 'failed') AS failed, (SELECT count(*) AS count_7
FROM outbox_row
WHERE outbox_row.status = 'cancelled') AS cancelled, (SELECT min(outbox_row.visible_after) AS min_1
FROM outbox_row
WHERE outbox_row.status = 'pending' AND NOT outbox_row.parked) AS oldest, statement_timestamp() AS now
