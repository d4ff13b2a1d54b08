DELETE FROM outbox_hold WHERE outbox_hold.scope = %(scope)s::VARCHAR AND outbox_hold.value = %(value)s::VARCHAR
