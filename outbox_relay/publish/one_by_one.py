"""The publisher for every broker that kombu knows and that has no faster way: one message after the other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from outbox_relay.publish.kombu_link import KombuLink
from outbox_relay.publish.receipts import Outcome, Publisher, Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kombu import Connection

    from outbox_relay.events import Events
    from outbox_relay.publish.envelope import Outgoing

PATIENCE = 2.0  # seconds to look for a broker that is away


class OneByOnePublisher(Publisher):
    """Publish each message with the transport's own call; one that returned without an error is confirmed."""

    def __init__(self, connection: Connection, events: Events | None = None) -> None:
        self._link = KombuLink(connection, events)

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def blocked(self) -> bool:
        return False

    def publish(self, messages: Sequence[Outgoing], *, timeout: float) -> list[Receipt]:
        deadline = time.monotonic() + timeout
        receipts = [Receipt(message.key, Outcome.UNSENT) for message in messages]
        for message, receipt in zip(messages, receipts, strict=True):
            if not self._deliver(message, receipt, deadline):
                break
        return receipts

    def _deliver(self, message: Outgoing, receipt: Receipt, deadline: float) -> bool:
        """Publish a message, once more where the connection breaks; tell whether it is worth going on."""
        for _ in range(2):
            if (left := deadline - time.monotonic()) <= 0:
                return False
            try:
                self._link.open(min(left, PATIENCE))
            except (*self._link.lost, *self._link.refused) as error:
                receipt.detail = str(error)
                return False
            self._publish_one(message, receipt)
            if receipt.outcome is not Outcome.UNKNOWN:
                break
        return True

    def _publish_one(self, message: Outgoing, receipt: Receipt) -> None:
        target, link = message.target, self._link
        try:
            prepared = prepare(link.channel, message)
            link.declare(target.queue, target.exchange)
            if not has_route(link.channel, target.exchange, target.routing_key):
                link.declare(target.queue, target.exchange, again=True)
                if not has_route(link.channel, target.exchange, target.routing_key):
                    receipt.outcome = Outcome.UNROUTABLE
                    receipt.detail = f"no queue is bound to {target.exchange!r} with {target.routing_key!r}"
                    return
            receipt.outcome = Outcome.UNKNOWN
            link.channel.basic_publish(prepared, exchange=target.exchange, routing_key=target.routing_key)
            receipt.outcome, receipt.detail = Outcome.CONFIRMED, ""
        except link.lost as error:
            receipt.detail = str(error)
            link.lose(error)
        except link.refused as error:
            receipt.outcome, receipt.detail = Outcome.REFUSED, str(error)
        except (TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
            receipt.outcome, receipt.detail = Outcome.UNSENDABLE, repr(error)

    def pulse(self) -> None:
        self._link.pulse()

    def close(self) -> None:
        self._link.close()


def prepare(channel: Any, message: Outgoing) -> Any:
    """Make the form in which a channel of kombu's takes a message."""
    properties = dict(message.properties)
    priority = properties.pop("priority", None)
    return channel.prepare_message(
        message.body, priority, message.content_type, message.content_encoding, dict(message.headers), properties
    )


def has_route(channel: Any, exchange: str, routing_key: str) -> bool:
    """Whether a message would reach a queue; kombu's virtual transports drop one that would not, without a word."""
    if not exchange or not isinstance(channel, virtual.Channel):
        return True
    kind = channel.typeof(exchange)
    if kind.type == "fanout":
        return True
    try:
        return bool(kind.lookup(channel.get_table(exchange), exchange, routing_key, None))
    except KeyError:  # no bindings at all
        return False
