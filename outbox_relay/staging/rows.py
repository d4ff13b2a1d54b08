"""From a finished task message to the row to be staged; all that can be wrong with the message is refused here."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601
from kombu import serialization

from outbox_relay.core.placement import DEFAULT_NAMESPACE, MAX_QUEUE_BYTES, Route, route_fault
from outbox_relay.core.row import Common, NewRow
from outbox_relay.core.settlement import HEADER
from outbox_relay.errors import StagingError
from outbox_relay.publish.fields import encode_fields, fields_fault
from outbox_relay.staging.options import text_fault

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Queue

    from outbox_relay.publish.recorder import Sent
    from outbox_relay.settings import Settings
    from outbox_relay.staging.options import Options

JSON = "application/json"
NO_LINKS = b', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'  # how such a JSON body ends
TYPED = b'"__type__"'  # what kombu's JSON reads back as a value of another type
MAX_PRIORITY = 255
DELAYED = "celery_delayed_27"  # Celery's exchange for delays on quorum queues
DELAYED_BITS = 28  # a routing key there starts with the delay in binary, a digit and a dot each


def new_row(sent: Sent, options: Options, settings: Settings, app: Celery, *, ordinal: int | None) -> NewRow:
    """Make the row of a message.

    Raises:
        StagingError: the message could not be stored, delivered or read by a worker as it is.
    """
    task_queue, exchange, routing_key = _route(sent, options, settings, app)
    _check_texts(sent, exchange, routing_key)
    _check_numbers(sent)
    _check_body(sent, settings.max_body_bytes)
    sent.headers.pop(HEADER, None)  # of another row, where a task hands its own headers on
    sent.properties.pop("expiration", None)  # relative: it would start anew when the row is published
    for what, fields in (("headers", sent.headers), ("properties", sent.properties)):
        if fault := fields_fault(fields):
            raise StagingError(f"{sent.task}: the {what} cannot be stored: {fault}")
    try:
        headers, properties = encode_fields(sent.headers), encode_fields(sent.properties)
    except (TypeError, ValueError) as error:
        raise StagingError(f"{sent.task}: headers or properties cannot be stored: {error}") from error
    visible_after, delay = _due(sent)
    return NewRow(
        common=Common(
            namespace=options.namespace,
            task_queue=task_queue,
            node=options.node,
            exchange=exchange,
            routing_key=routing_key,
            task=sent.task,
            content_type=sent.content_type,
            content_encoding=sent.content_encoding,
            workflow_id=options.workflow_id,
            run_id=options.run_id,
            retries=int(_field(sent, "retries") or 0),
            max_attempts=options.max_attempts,
            settle_on=options.settle_on,
        ),
        dispatch_key=options.key_of(sent.task_id, ordinal),
        content_hash=_content_hash(sent, (task_queue, options.node or "", exchange, routing_key)),
        task_id=sent.task_id,
        body=sent.body,
        headers=headers,
        properties=properties,
        ordinal=ordinal,
        visible_after=visible_after,
        delay=delay,
        expires_at=_instant(sent, "expires"),
    )


# -- where it goes ------------------------------------------------------------------------------------------------


def _route(sent: Sent, options: Options, settings: Settings, app: Celery) -> tuple[str, str, str]:
    """Return task queue, exchange and routing key.

    Raises:
        StagingError: no queue can be named after the route.
    """
    exchange, routing_key, queue = sent.exchange, sent.routing_key, sent.queue
    if exchange == DELAYED:
        exchange, routing_key, queue = _undelayed(sent, app)
    task_queue = options.task_queue or _task_queue(exchange, routing_key, queue, app)
    if task_queue is None and (options.namespace != DEFAULT_NAMESPACE or options.node is not None):
        raise StagingError(
            f"{sent.task} is sent to exchange {exchange!r} without a queue, so its queue in namespace "
            f"{options.namespace!r} cannot be named: give task_queue"
        )
    if task_queue is None:  # a name to show: the message goes by its exchange and routing key
        task_queue = routing_key if queue is None else queue.name
    route = Route(options.namespace, task_queue, options.node)
    if fault := route_fault(route, namespace_queues=settings.namespace_queues):
        raise StagingError(fault)
    return task_queue, exchange, routing_key


def _task_queue(exchange: str, routing_key: str, queue: Queue | None, app: Celery) -> str | None:
    """Name the queue that Celery routed the message to; None where the sender named an exchange of his own.

    Celery adds its default queue to a message that names an exchange, and does not mean it.
    """
    if exchange == "":
        return routing_key
    if queue is not None and queue.name != app.conf.task_default_queue:
        return str(queue.name)
    for one in app.amqp.queues.values():
        if one.exchange.name == exchange and one.routing_key == routing_key:
            return str(one.name)
    return None


def _undelayed(sent: Sent, app: Celery) -> tuple[str, str, Any]:
    """Undo Celery's delay on quorum queues: here the row waits, and is published when it is due."""
    key = sent.routing_key[2 * DELAYED_BITS :]
    for queue in app.amqp.queues.values():
        if queue.routing_key == key and queue.exchange.type != "direct":
            return queue.exchange.name, key, queue
    raise StagingError(
        f"{sent.task}: no queue of the app has the routing key {key!r}, so the delay cannot be taken off"
    )


# -- what it is ---------------------------------------------------------------------------------------------------


def _check_texts(sent: Sent, exchange: str, routing_key: str) -> None:
    """What AMQP keeps in short strings has to fit there, and every database has to take it."""
    if fault := text_fault(sent.task):
        raise StagingError(f"task name {sent.task!r} is refused: {fault}")
    if fault := text_fault(sent.task_id):
        raise StagingError(f"{sent.task}: task id {sent.task_id!r} is refused: {fault}")
    reply_to = str(sent.properties.get("reply_to") or "")
    for name, value in (
        ("task id", sent.task_id),
        ("exchange", exchange),
        ("routing key", routing_key),
        ("reply_to", reply_to),
    ):
        if value and (fault := text_fault(value)):
            raise StagingError(f"{sent.task}: {name} {value!r} is refused: {fault}")
        if len(value) > MAX_QUEUE_BYTES // 4 and len(value.encode()) > MAX_QUEUE_BYTES:
            raise StagingError(f"{sent.task}: {name} {value[:40]!r}... takes more than {MAX_QUEUE_BYTES} bytes")


def _check_numbers(sent: Sent) -> None:
    """AMQP has a byte for a priority; and a worker ends when it meets a time limit that is no number."""
    priority = sent.properties.get("priority")
    if priority is not None and (not isinstance(priority, int) or not 0 <= priority <= MAX_PRIORITY):
        raise StagingError(
            f"{sent.task}: priority {priority!r} is refused: write a whole number from 0 to {MAX_PRIORITY}"
        )
    for limit in _field(sent, "timelimit") or ():
        if limit is not None and not isinstance(limit, (int, float)):
            raise StagingError(f"{sent.task}: time limit {limit!r} is refused: write a number of seconds")


def _check_body(sent: Sent, most: int) -> None:
    """Refuse a body that is too large, or that a worker could not read."""
    if len(sent.body) > most:
        raise StagingError(
            f"{sent.task}: its body has {len(sent.body)} bytes, and outbox_max_body_bytes allows {most}: "
            "store the data and pass a reference to it"
        )
    if sent.content_type == JSON and TYPED not in sent.plain:
        return  # JSON that kombu wrote is JSON that it reads
    try:
        serialization.loads(sent.plain, sent.content_type, sent.content_encoding, accept=[sent.content_type])
    except Exception as error:
        raise StagingError(f"{sent.task}: a worker could not decode these arguments: {error}") from error


def _content_hash(sent: Sent, route: tuple[str, ...]) -> bytes:
    """Digest what makes two rows with one dispatch key the same: task, arguments and route."""
    digest = content_digest(sent.task, route)
    digest.update(_arguments(sent))
    return bytes(digest.digest())


def content_digest(task: str, route: tuple[str, ...]) -> Any:
    """Begin the digest that :attr:`NewRow.content_hash` is; the arguments come last."""
    digest = blake2b(digest_size=16)
    for part in (task, *route):
        digest.update(part.encode() + b"\x00")
    return digest


def _arguments(sent: Sent) -> bytes:
    """Return args and kwargs, serialised, without links: those carry ids that are new in every call."""
    content: Any = sent.content
    args: Any
    kwargs: Any
    if isinstance(content, dict):  # protocol 1
        args, kwargs = content["args"], content["kwargs"]
    elif isinstance(content, (tuple, list)) and len(content) == 3:
        args, kwargs, _ = content
    else:
        return sent.plain
    in_order = len(kwargs) < 2 or list(kwargs) == sorted(kwargs, key=str)
    if in_order and sent.content_type == JSON and sent.plain.endswith(NO_LINKS):
        return sent.plain[: -len(NO_LINKS)]
    if not in_order:
        kwargs = {name: kwargs[name] for name in sorted(kwargs, key=str)}
    data = serialization.dumps((args, kwargs), serializer=sent.serializer)[2]
    data = data.encode(sent.content_encoding) if isinstance(data, str) else bytes(data)
    return data[:-1] if sent.content_type == JSON else data  # up to where a body with links goes on


# -- when it is due -----------------------------------------------------------------------------------------------


def _field(sent: Sent, name: str) -> Any:
    """A header of the message; protocol 1 has them in the body."""
    if name in sent.headers:
        return sent.headers[name]
    return sent.content.get(name) if isinstance(sent.content, dict) else None


def _due(sent: Sent) -> tuple[datetime | None, timedelta | None]:
    """Return the instant or the delay after which the row is due. A countdown counts by the database's clock."""
    if sent.countdown is not None:
        seconds = float(sent.countdown)
        return None, timedelta(seconds=seconds) if seconds > 0 else None
    return _instant(sent, "eta"), None


def _instant(sent: Sent, name: str) -> datetime | None:
    """Read ``eta`` or ``expires``.

    Celery's workers read an instant without a time zone as UTC, while ``datetime.now()`` is this machine's own time:
    where the two differ, it would be hours off one way or the other.
    """
    value = _field(sent, name)
    if not value:
        return None
    try:
        instant: datetime | None = maybe_iso8601(value)
    except (ValueError, TypeError) as error:
        raise StagingError(f"{sent.task}: {name} {value!r} is no instant: {error}") from error
    assert instant is not None
    if instant.tzinfo is not None:
        return instant
    if instant.astimezone().utcoffset():
        raise StagingError(
            f"{sent.task}: {name} {value!r} has no time zone, and this machine is not on UTC: "
            "pass an aware datetime, such as datetime.now(timezone.utc) + timedelta(minutes=30)"
        )
    return instant.replace(tzinfo=timezone.utc)
