UPDATE outbox_relay SET marker=?, marker_at=strftime('%Y-%m-%d %H:%M:%f', 'now') || '000' WHERE outbox_relay.instance = ?
