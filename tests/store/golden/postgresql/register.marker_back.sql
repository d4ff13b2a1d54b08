UPDATE outbox_relay SET marker=%(id)s::UUID, marker_at=statement_timestamp() WHERE outbox_relay.instance = %(owner)s::UUID
