"""A task's retry goes back to its row, not to the broker.

The message that ``self.retry`` and autoretry are about to send is caught where the task runs, and travels to the
worker's main process on the pool's own result, so that one process reports one outcome. Links, chains and chords are
not caught: Celery sends them as it always does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.utils.time import maybe_iso8601, maybe_make_aware

from outbox_relay.core.settlement import HEADER, Retried
from outbox_relay.publish.capture import divert, install, restore
from outbox_relay.publish.fields import encode_fields

if TYPE_CHECKING:
    from celery import Celery

    from outbox_relay.publish.capture import Sending, Sent

# Celery's own, which say nothing that the task asked for: who sent it, when it is due and how often it was tried.
PASSING_HEADERS = frozenset({HEADER, "eta", "retries", "parent_id", "origin", "compression"})
SHOWN_ARGUMENTS = ("argsrepr", "kwargsrepr")
CHOSEN_PROPERTIES = ("priority", "delivery_mode")


@dataclass(frozen=True, slots=True)
class Caught:
    """A retry's message, as it would have gone to the broker. ``plain`` is its body before compression."""

    delay: float
    retries: int
    body: bytes
    plain: bytes | None
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str
    queue: str | None


@dataclass(frozen=True, slots=True)
class Rider:
    """What only the process that ran the task knows, and its result carries to the main process.

    ``lineage`` are the names of the exception's classes, where the exception itself could not be carried as it was.
    """

    retry: Caught | None = None
    lineage: tuple[str, ...] = ()


class Carrier(str):
    """The text of a task's result, with a rider."""

    __slots__ = ("rider",)
    rider: Rider

    def __reduce__(self) -> Any:
        return _carry, (str(self), self.rider)


def _carry(text: str, rider: Rider) -> Carrier:
    carrier = Carrier(text)
    carrier.rider = rider
    return carrier


def rider_of(result: Any) -> Rider | None:
    """Return what a pool's result carries: the text of a return value, or an ExceptionInfo."""
    rider = getattr(result, "rider", None)
    return rider if isinstance(rider, Rider) else None


class RetrySink:
    """Catches the retry of one run of one task, and nothing else."""

    offline = False
    tees = False

    def __init__(self, app: Celery, task_id: str, retries: int) -> None:
        self.app = app
        self.caught: Caught | None = None
        self._task_id = task_id
        self._next = retries + 1

    def wants(self, sending: Sending) -> bool:
        return bool(sending.headers.get("id") == self._task_id and sending.retries == self._next)

    def take(self, sent: Sent) -> None:
        delay = sent.countdown if sent.countdown is not None else _until(sent.headers.get("eta"), self.app)
        self.caught = Caught(
            delay=float(delay),
            retries=self._next,
            body=sent.body,
            plain=None if sent.plain == sent.body else sent.plain,
            content_type=sent.content_type,
            content_encoding=sent.content_encoding,
            headers={name: value for name, value in sent.headers.items() if name != HEADER},
            properties={name: sent.properties[name] for name in CHOSEN_PROPERTIES if name in sent.properties},
            exchange=sent.exchange,
            routing_key=sent.routing_key,
            queue=None if sent.queue is None else sent.queue.name,
        )


def _until(eta: Any, app: Celery) -> float:
    """Seconds from now to an eta; by this process's clock at both ends, so that a wrong clock does not matter."""
    if not eta:
        return 0.0
    due = maybe_make_aware(maybe_iso8601(eta), app.timezone)
    seconds: float = (due - datetime.now(timezone.utc)).total_seconds()
    return max(seconds, 0.0)


# -- where the task runs ------------------------------------------------------------------------------------------


def carry_riders(task: Any, app: Celery) -> None:
    """Wrap the function that runs a task, as Celery has built it for this process. Safe to call again."""
    traced = task.__trace__
    if traced is None or hasattr(traced, "__outbox__"):
        return

    def trace(uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
        if not request or HEADER not in request:
            return traced(uuid, args, kwargs, request)
        sink = RetrySink(app, uuid, int(request.get("retries") or 0))
        before, _ = divert(sink)
        try:
            result = traced(uuid, args, kwargs, request)
        finally:
            restore(before)
        return _with_rider(result, sink.caught)

    install(app)
    trace.__outbox__ = True  # type: ignore[attr-defined]  # marks the wrapper
    task.__trace__ = trace


def _with_rider(result: Any, caught: Caught | None) -> Any:
    value, info, _, text = result
    if isinstance(value, ExceptionInfo):
        lineage = _lost_lineage(value, info)
        if caught is not None or lineage:
            value.rider = Rider(caught, lineage)
    elif caught is not None:
        return result._replace(retstr=_carry("" if text is None else str(text), Rider(caught)))
    return result


def _lost_lineage(exc_info: ExceptionInfo, info: Any) -> tuple[str, ...]:
    """Name the classes of an exception that Celery had to replace because it cannot be pickled."""
    if info is None or info.state != states.FAILURE:
        return ()
    carried = getattr(exc_info.exception, "exc", exc_info.exception)
    original = type(info.retval)
    if type(carried) is original:
        return ()
    return tuple(
        name for one in original.__mro__ for name in (one.__qualname__, f"{one.__module__}.{one.__qualname__}")
    )


# -- in the main process ------------------------------------------------------------------------------------------


def to_retried(caught: Caught, request: Any) -> Retried:
    """Say how a retry differs from the message that was delivered. What is the same stays as the row has it."""
    message = request.message
    plain = caught.body if caught.plain is None else caught.plain
    delivered = message.headers
    changes: dict[str, Any] = {}
    same_body = plain == _bytes(message.body)
    if not same_body:
        changes.update(body=caught.body, content_type=caught.content_type, content_encoding=caught.content_encoding)
    if not same_body or _wanted(caught.headers, same_body) != _wanted(delivered, same_body):
        headers = dict(caught.headers)
        headers.update({name: delivered.get(name) for name in ("parent_id", "origin")}, eta=None)
        if same_body:
            headers.update({name: delivered[name] for name in (*SHOWN_ARGUMENTS, "compression") if name in delivered})
        changes["headers"] = encode_fields(headers)
    if any(caught.properties.get(name) != message.properties.get(name) for name in caught.properties):
        kept = {name: message.properties.get(name) for name in ("correlation_id", "reply_to")}
        kept.update(caught.properties)
        changes["properties"] = encode_fields({name: value for name, value in kept.items() if value is not None})
    changes.update(_new_route(caught, request.delivery_info))
    return Retried(delay=caught.delay, retries=caught.retries, **changes)


def _wanted(headers: dict[str, Any], same_body: bool) -> Any:
    """The headers that count, in the form that they have after a journey."""
    passing = PASSING_HEADERS.union(SHOWN_ARGUMENTS) if same_body else PASSING_HEADERS
    return json.loads(encode_fields({name: value for name, value in headers.items() if name not in passing}))


def _new_route(caught: Caught, delivery_info: dict[str, Any]) -> dict[str, str]:
    before = (delivery_info.get("exchange") or "", delivery_info.get("routing_key") or "")
    if (caught.exchange or "", caught.routing_key or "") == before or caught.exchange.startswith("celery_delayed_"):
        return {}
    route = {"exchange": caught.exchange or "", "routing_key": caught.routing_key or ""}
    if caught.queue is not None:
        route["task_queue"] = caught.queue
    elif not caught.exchange:
        route["task_queue"] = caught.routing_key
    return route


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


def carry_everywhere(app: Celery) -> None:
    """Wrap all tasks of an app, in the process that runs them."""
    for task in app.tasks.values():
        carry_riders(task, app)
