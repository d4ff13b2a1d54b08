DELETE FROM outbox_relay WHERE outbox_relay.last_seen_at < strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', -?)) || '000'
