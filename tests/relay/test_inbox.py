"""How a relay waits for what comes by the broker."""

from __future__ import annotations

import time

from kombu import Connection, Queue

from outbox_relay.events import Events
from outbox_relay.relay.inbox import SHORTEST_HEARTBEAT, Inbox, consumer_connection


def test_an_idle_connection_with_the_shortest_heartbeat_is_kept(rabbitmq_url: str) -> None:
    """The server's heartbeats come while the inbox waits for messages; they must not keep it from sending its own."""
    with Connection(rabbitmq_url) as shop:
        connection = consumer_connection(shop, "shop", heartbeat=SHORTEST_HEARTBEAT, visible_after=2)
        events = Events()
        told: list[str] = []
        events.subscribe(lambda event: told.append(event.name))
        inbox = Inbox(connection, [Queue("idle")], events)
        assert inbox.open() == 0
        began = time.monotonic()
        while time.monotonic() < began + 4 * SHORTEST_HEARTBEAT:
            assert inbox.receive(1.5 * SHORTEST_HEARTBEAT, 10) == []
        assert time.monotonic() < began + 6 * SHORTEST_HEARTBEAT
        inbox.close()
    assert told == []
