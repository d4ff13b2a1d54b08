DELETE FROM outbox_worker WHERE outbox_worker.last_seen_at < strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', -?)) || '000'
