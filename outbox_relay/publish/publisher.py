"""Hand messages to a broker, and learn of each what became of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kombu import Connection

from outbox_relay.publish.one_by_one import OneByOnePublisher
from outbox_relay.publish.rabbitmq import RabbitPublisher
from outbox_relay.publish.receipts import Outcome, Publisher, Receipt

if TYPE_CHECKING:
    from celery import Celery

    from outbox_relay.events import Events

__all__ = ["Outcome", "Publisher", "Receipt", "expires_messages", "open_publisher"]

HEARTBEAT = 10.0  # a broker that has silently gone is noticed within two


def open_publisher(
    source: Celery | Connection, *, events: Events | None = None, heartbeat: float = HEARTBEAT
) -> Publisher:
    """Return the publisher for an app's broker, or for the broker of a connection (which itself stays unused)."""
    connection = source.clone() if isinstance(source, Connection) else source.connection_for_write()
    if driver_type(connection) == "amqp":
        return RabbitPublisher(connection, events, heartbeat)
    if driver_type(connection) == "redis":
        with suppress(ImportError):  # a kombu before 5.7 has no pipelines
            from outbox_relay.publish.redis_batch import RedisPublisher  # noqa: PLC0415 - needs the redis extra

            return RedisPublisher(connection, events)
    return OneByOnePublisher(connection, events)


def expires_messages(source: Celery | Connection) -> bool:
    """Whether the broker drops a message by itself once its ``expiration`` has passed."""
    connection = source if isinstance(source, Connection) else source.connection_for_write()
    return driver_type(connection) == "amqp"


def driver_type(connection: Connection) -> str:
    """Return the kind of broker behind a connection, as kombu calls it (``amqp``, ``redis``, ``embedded``, …)."""
    return str(connection.get_transport_cls().driver_type)
