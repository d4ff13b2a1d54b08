DELETE FROM outbox_worker WHERE outbox_worker.last_seen_at < statement_timestamp() + make_interval(secs => -%(age)s)
