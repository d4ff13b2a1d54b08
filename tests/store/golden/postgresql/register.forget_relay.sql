DELETE FROM outbox_relay WHERE outbox_relay.instance = %(instance)s::UUID
