"""The message of a row that plain SQL inserted: what Celery itself would have sent for such a call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from outbox_relay.core.row import Message
from outbox_relay.errors import PublishError
from outbox_relay.publish.capture import Sending, Sent, diverted
from outbox_relay.publish.fields import encode_fields, fields_fault

if TYPE_CHECKING:
    from celery import Celery

    from outbox_relay.core.row import ClaimedRow


def is_plain(row: ClaimedRow) -> bool:
    """Whether a row has no message yet."""
    return not row.message.content_type


def message_of(app: Celery, row: ClaimedRow, args: str | None, kwargs: str | None, *, max_bytes: int) -> Message:
    """Call the row's task by its name, with the arguments that its JSON says, and keep what would be sent.

    Routing, serializer and options are the task's own where the app knows the task, else the app's.

    Raises:
        PublishError: nothing can be made of it; the message says why.
    """
    if app.conf.task_always_eager:
        raise PublishError("task_always_eager is on in the relay's app: the task would run here")
    given = _read("args", args, list, "an array")
    named = _read("kwargs", kwargs, dict, "an object")
    options = {"queue": row.message.task_queue} if row.message.task_queue else {}
    sink = _Sink(app, row.message.task_id)
    try:
        with diverted(sink):
            app.signature(row.message.task, args=given, kwargs=named, app=app).apply_async(
                task_id=row.message.task_id, **options
            )
    except Exception as error:  # the user's routers and signal handlers take part
        raise PublishError(f"no message can be made of it: {type(error).__name__}: {error}") from error
    if (sent := sink.sent) is None:
        raise PublishError("no message can be made of it: its task sends none")
    return _stored(sent, row.message.task_queue, max_bytes)


class _Sink:
    """Takes the one message of the one call."""

    offline = True
    tees = False

    def __init__(self, app: Celery, task_id: str) -> None:
        self.app = app
        self.sent: Sent | None = None
        self._task_id = task_id

    def wants(self, sending: Sending) -> bool:
        if sending.is_broadcast:
            raise PublishError(f"its queue is a broadcast, which every worker would run: {sending.options}")
        return sending.task_id == self._task_id

    def take(self, sent: Sent) -> None:
        self.sent = sent


def _stored(sent: Sent, task_queue: str, max_bytes: int) -> Message:
    if len(sent.body) > max_bytes:
        raise PublishError(f"its message has {len(sent.body):,} bytes, and outbox_max_body_bytes allows {max_bytes:,}")
    if fault := fields_fault(sent.headers):
        raise PublishError(f"a header cannot be carried: {fault}")
    queue = sent.queue.name if sent.queue is not None else sent.routing_key
    return Message(
        task=sent.task,
        task_id=sent.task_id,
        task_queue=task_queue or queue,
        exchange=sent.exchange,
        routing_key=sent.routing_key,
        body=sent.body,
        content_type=sent.content_type,
        content_encoding=sent.content_encoding,
        headers=encode_fields(sent.headers),
        properties=encode_fields({name: value for name, value in sent.properties.items() if value is not None}),
    )


def _read(what: str, text: str | None, kind: type, name: str) -> Any:
    if text is None:
        return kind()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PublishError(f"its {what} are no JSON: {error}") from error
    if not isinstance(value, kind):
        raise PublishError(f"its {what} are a {type(value).__name__}, where {name} is needed")
    return value
