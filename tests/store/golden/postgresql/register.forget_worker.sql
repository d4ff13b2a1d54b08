DELETE FROM outbox_worker WHERE outbox_worker.instance = %(instance)s::UUID
