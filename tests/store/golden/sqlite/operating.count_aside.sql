SELECT count(*) AS count_1
FROM outbox_aside
