"""The message that a claimed row becomes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu.utils.json import loads as load_typed

from outbox_relay.core.settlement import HEADER, Delivery
from outbox_relay.errors import PublishError
from outbox_relay.publish.queues import Target

if TYPE_CHECKING:
    from datetime import timedelta

    from kombu import Queue

    from outbox_relay.core.row import ClaimedRow
    from outbox_relay.publish.queues import Queues

PERSISTENT, TRANSIENT = 2, 1


@dataclass(slots=True)
class Outgoing:
    """A message ready to be published. ``key`` is the caller's, and comes back on the receipt.

    ``properties`` are AMQP's basic properties by their names, besides content type, encoding and headers.
    """

    key: int
    target: Target
    body: bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]

    @property
    def identity(self) -> str:
        """What tells this message from every other one, also when a broker hands it back."""
        return identity_of(self.headers, self.properties)


def identity_of(headers: dict[str, Any], properties: dict[str, Any]) -> str:
    """Return the ``x-outbox`` header of a message, or its message id where it has no such header."""
    return str(headers.get(HEADER) or properties.get("message_id"))


def outgoing(
    row: ClaimedRow, queues: Queues, *, settlement_queue: str, expiration: timedelta | None = None
) -> Outgoing:
    """Make the message of a claimed row.

    It is the staged message with four changes: the ``x-outbox`` header says which delivery of which row it is and
    where to report; ``retries`` is the row's; ``eta`` is empty, for a row that is due is due; and its life on the
    broker is ``expiration``, not the user's ``expires``, whose relative form would start anew with each publish.

    Raises:
        PublishError: the stored message cannot be read, or no queue can be named after its route.
    """
    message = row.message
    target = queues.target(row.namespace, message.task_queue, row.node, message.exchange, message.routing_key)
    headers = _load("headers", message.headers)
    headers[HEADER] = Delivery(row.id, row.attempt, row.token, settlement_queue).header()
    headers["retries"] = row.retries
    headers["eta"] = None
    properties = _load("properties", message.properties)
    properties.pop("expiration", None)
    if expiration is not None:
        properties["expiration"] = _milliseconds(expiration)
    return Outgoing(row.id, target, message.body, message.content_type, message.content_encoding, headers, properties)


def report(
    key: int, queue: Queue, body: bytes, *, persistent: bool = True, expiration: timedelta | None = None
) -> Outgoing:
    """Make a message of the outbox's own (settlements, a beacon, a marker) for one of its queues. ``body`` is JSON."""
    properties = {"delivery_mode": PERSISTENT if persistent else TRANSIENT, "message_id": uuid4().hex}
    if expiration is not None:
        properties["expiration"] = _milliseconds(expiration)
    return Outgoing(key, Target.direct(queue), body, "application/json", "utf-8", {}, properties)


def _milliseconds(span: timedelta) -> str:
    return str(max(int(span.total_seconds() * 1000), 0))


def _load(what: str, data: bytes) -> dict[str, Any]:
    """Read a stored JSON object; kombu's own reader, many times slower, only where there is a typed value in it."""
    try:
        value = load_typed(data) if b'"__type__"' in data else json.loads(data.decode())
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise PublishError(f"the {what} of the message cannot be read: {error!r}") from error
    if not isinstance(value, dict):
        raise PublishError(f"the {what} of the message are a {type(value).__name__}, not an object")
    return value
