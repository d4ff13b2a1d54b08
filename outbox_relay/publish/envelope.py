"""The message that a claimed row becomes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from outbox_relay.core.settlement import HEADER, delivery_header
from outbox_relay.publish.forms import Forms, filled, load
from outbox_relay.publish.queues import Target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from kombu import Queue

    from outbox_relay.core.row import ClaimedRow
    from outbox_relay.publish.forms import Form
    from outbox_relay.publish.queues import Queues

PERSISTENT, TRANSIENT = 2, 1


class Outgoing:
    """A message ready to be published. ``key`` is the caller's, and comes back on the receipt.

    ``properties`` are AMQP's basic properties by their names, besides content type, encoding and headers. ``identity``
    tells this message from every other one, also when a broker hands it back.

    What a row stores is not always read: where ``form`` is given, with the ``texts`` that go into it, the two
    dictionaries are made when somebody asks for them.
    """

    __slots__ = (
        *("_headers", "_properties", "body", "content_encoding", "content_type", "form", "identity", "key"),
        *("target", "texts"),
    )

    def __init__(  # noqa: PLR0917 - the fields of a record
        self,
        key: int,
        target: Target,
        body: bytes,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
    ) -> None:
        self.key = key
        self.target = target
        self.body = body
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.form: Form | None = None
        self.texts: Sequence[bytes] = ()
        self._headers: dict[str, Any] | None = headers
        self._properties: dict[str, Any] | None = properties
        self.identity = identity_of(headers, properties)

    @classmethod
    def of_form(cls, row: ClaimedRow, target: Target, form: Form, texts: Sequence[bytes], identity: str) -> Outgoing:
        """Make the message of a row whose form is known."""
        one, message = cls.__new__(cls), row.message
        one.key = row.id
        one.target = target
        one.body = message.body
        one.content_type = message.content_type
        one.content_encoding = message.content_encoding
        one.form = form
        one.texts = texts
        one._headers = one._properties = None
        one.identity = identity
        return one

    @property
    def headers(self) -> dict[str, Any]:
        if self._headers is None:
            assert self.form is not None
            self._headers = filled(self.form.headers, self.texts)
        return self._headers

    @property
    def properties(self) -> dict[str, Any]:
        if self._properties is None:
            assert self.form is not None
            self._properties = filled(self.form.properties, self.texts)
        return self._properties


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
    identity = delivery_header(row.id, row.attempt, row.token, settlement_queue)
    life = None if expiration is None else _milliseconds(expiration)
    other = (row.retries, message.content_type, message.content_encoding, life)
    if (known := forms.of(message, other)) is not None:
        form, texts = known
        texts.append(identity.encode())
        return Outgoing.of_form(row, target, form, texts, identity)
    headers, properties = load("headers", message.headers), load("properties", message.properties)
    _change(headers, properties, identity, other)
    body, content_type, content_encoding = message.body, message.content_type, message.content_encoding
    return Outgoing(row.id, target, body, content_type, content_encoding, headers, properties)


def _change(
    headers: dict[str, Any], properties: dict[str, Any], identity: Any, other: tuple[int, str, str, str | None]
) -> None:
    headers[HEADER] = identity
    headers["retries"], _, _, life = other
    headers["eta"] = None
    properties.pop("expiration", None)
    if life is not None:
        properties["expiration"] = life


forms = Forms(_change)


def report(
    key: int, queue: Queue, body: bytes, *, persistent: bool = True, expiration: timedelta | None = None
) -> Outgoing:
    """Make a message of the outbox's own (settlements, a beacon, a marker) for one of its queues. ``body`` is JSON."""
    properties = {"delivery_mode": PERSISTENT if persistent else TRANSIENT, "message_id": uuid4().hex}
    if expiration is not None:
        properties["expiration"] = _milliseconds(expiration)
    return Outgoing(key, Target.direct(queue), body, "application/json", "utf-8", {}, properties)


@lru_cache(maxsize=16)
def _milliseconds(span: timedelta) -> str:
    return str(max(int(span.total_seconds() * 1000), 0))
