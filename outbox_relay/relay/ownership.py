"""One outbox owns a name on a broker: two that shared it would eat each other's settlements.

The owner's id lies as a message in a queue of its own. Relays read it at their start, and put it back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

from outbox_relay.core.settlement import VERSION
from outbox_relay.core.wire import WireError, load_document
from outbox_relay.errors import PublishError
from outbox_relay.publish.envelope import report
from outbox_relay.publish.queues import own_queue
from outbox_relay.publish.receipts import Outcome

if TYPE_CHECKING:
    from kombu import Connection, Message, Queue

    from outbox_relay.publish.receipts import Publisher

OWNER = "outbox.owner."


class NotTheOwnerError(PublishError):
    """Another outbox owns this outbox's name on the broker."""


def own(connection: Connection, publisher: Publisher, name: str, outbox_id: UUID, *, take_over: bool = False) -> None:
    """Make sure that ``outbox_id`` owns ``name``: take what is free, keep what is owned.

    With ``take_over`` another owner is put out; do so only after a database was made anew.

    Raises:
        NotTheOwnerError: another outbox owns it.
        PublishError: the broker did not confirm the taking.
        OSError, and what kombu raises: the broker is away.
    """
    queue = own_queue(OWNER + name)
    others = _others(connection, queue, outbox_id, keep=not take_over)
    if others is None:
        _put(publisher, queue, outbox_id)
        others = _others(connection, queue, outbox_id, keep=True)  # somebody else may have done the same meanwhile
    if others:
        raise NotTheOwnerError(
            f"the name {name!r} belongs to another outbox on this broker ({', '.join(str(one) for one in others)}): "
            "give this one another outbox_name; or, where its database was made anew, start one relay with --take-over"
        )


def _others(connection: Connection, queue: Queue, outbox_id: UUID, *, keep: bool) -> list[UUID] | None:
    """Return the owners besides ``outbox_id``; None where nobody is an owner. ``keep`` false removes the others."""
    channel = connection.channel()
    try:
        bound = queue(channel)
        bound.declare()
        messages: list[Message] = []
        while (message := bound.get()) is not None:
            messages.append(message)
        owners = [_read(message) for message in messages]
        mine = outbox_id in owners
        kept: set[UUID] = set()
        for owner, message in zip(owners, messages, strict=True):
            wanted = owner is not None and (owner == outbox_id or keep) and owner not in kept
            if owner is not None and wanted:
                kept.add(owner)
                message.requeue()
            else:
                message.ack()
        others = sorted({one for one in kept if one != outbox_id})
        return others if others or mine else None
    finally:
        channel.close()


def _read(message: Message) -> UUID | None:
    body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
    try:
        return UUID(hex=load_document(body)["owner"])
    except (WireError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _put(publisher: Publisher, queue: Queue, outbox_id: UUID) -> None:
    body = json.dumps({"v": VERSION, "owner": outbox_id.hex}).encode()
    (receipt,) = publisher.publish([report(0, queue, body)], timeout=10)
    if receipt.outcome is not Outcome.CONFIRMED:
        raise PublishError(f"the broker did not take the owner's message: {receipt.detail}")
