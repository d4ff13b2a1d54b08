DELETE FROM outbox_relay WHERE outbox_relay.last_seen_at < statement_timestamp() + make_interval(secs => -%(age)s)
