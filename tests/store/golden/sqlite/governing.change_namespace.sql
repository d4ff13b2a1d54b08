UPDATE outbox_namespace SET placement=?, nodes=?, max_in_flight=?, state=? WHERE outbox_namespace.namespace = ?
