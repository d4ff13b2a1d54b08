"""How a relay waits for what comes by the broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from kombu import Connection, Queue
from redis import Redis

from outbox_relay.events import Events
from outbox_relay.relay.inbox import SHORTEST_HEARTBEAT, Inbox, consumer_connection
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from kombu import Message


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


@pytest.mark.parametrize("body", [b"rubbish", b"[]", b"{}", b'{"body": 1, "properties": {}}'])
def test_what_is_no_message_is_told_of_and_gone(redis_url: str, body: bytes) -> None:
    """Anybody may write to a list of Redis; what comes after it is received."""
    with Connection(redis_url) as shop, Redis.from_url(redis_url) as client:
        events = Events()
        told: list[str] = []
        events.subscribe(lambda event: told.append(event.name))
        inbox = Inbox(consumer_connection(shop, "shop", heartbeat=10, visible_after=2), [Queue("work")], events)
        client.lpush("work", body)
        messages: list[Message] = []

        def receive() -> bool:
            if inbox.open() == 0:
                try:
                    messages.extend(inbox.receive(0.2, 10))
                except inbox.lost as error:
                    inbox.gone(error)
            return bool(messages)

        eventually(lambda: (receive(), client.llen("work") == 0)[1], 10)
        with shop.Producer() as producer:
            producer.publish({}, routing_key="work", exchange="")
        eventually(receive, 10)
        inbox.close()
    assert told
