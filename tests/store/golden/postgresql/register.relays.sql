SELECT outbox_relay.instance, outbox_relay.hostname, outbox_relay.loops, outbox_relay.live_for, outbox_relay.started_at, outbox_relay.last_seen_at, outbox_relay.applied_at, outbox_relay.marker, outbox_relay.marker_at, outbox_relay.last_seen_at + make_interval(secs => outbox_relay.live_for) > statement_timestamp() AS live
FROM outbox_relay ORDER BY outbox_relay.last_seen_at DESC
