DELETE FROM outbox_hold WHERE outbox_hold.scope = ? AND outbox_hold.value = ?
