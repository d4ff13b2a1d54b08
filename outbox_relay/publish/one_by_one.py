"""The publisher for every broker that kombu knows and that has no faster way: one message after the other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kombu import Connection, Producer
from kombu.exceptions import KombuError

from outbox_relay.publish.receipts import Outcome, Publisher, Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_relay.events import Events
    from outbox_relay.publish.envelope import Outgoing


class OneByOnePublisher(Publisher):
    """Publish with kombu's own producer."""

    def __init__(self, connection: Connection, events: Events | None = None) -> None:
        self._connection = connection
        self._events = events
        self._open = False

    @property
    def connected(self) -> bool:
        return self._open

    @property
    def blocked(self) -> bool:
        return False

    def publish(self, messages: Sequence[Outgoing], *, timeout: float) -> list[Receipt]:
        deadline = time.monotonic() + timeout
        receipts = [Receipt(message.key, Outcome.UNSENT) for message in messages]
        lost = (*self._connection.connection_errors, *self._connection.channel_errors, KombuError, OSError)
        try:
            self._connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=timeout)
            producer = Producer(self._connection.default_channel)
        except lost as error:
            self.close()
            for receipt in receipts:
                receipt.detail = repr(error)
            return receipts
        self._open = True
        for message, receipt in zip(messages, receipts, strict=True):
            if time.monotonic() >= deadline:
                break
            properties = dict(message.properties)
            priority = properties.pop("priority", None)
            expiration = properties.pop("expiration", None)
            try:
                producer.publish(
                    message.body,
                    exchange=message.target.exchange,
                    routing_key=message.target.routing_key,
                    declare=[message.target.queue],
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    headers=message.headers,
                    priority=priority or 0,
                    expiration=None if expiration is None else int(expiration) / 1000,
                    **properties,
                )
                receipt.outcome = Outcome.CONFIRMED
            except lost as error:
                receipt.outcome, receipt.detail = Outcome.UNKNOWN, repr(error)
                self.close()
                break
        return receipts

    def pulse(self) -> None:
        if not self.connected:
            self.publish([], timeout=1)

    def close(self) -> None:
        self._open = False
        self._connection.release()
