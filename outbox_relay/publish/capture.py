"""The one place where a task message can be caught before it leaves the process.

Everything that sends a task - ``delay``, ``apply_async``, ``send_task``, every canvas, Celery's own retry - comes
through ``app.send_task``, and from there through ``app.amqp.create_task_message`` and ``app.amqp.send_task_message``.
Those two are wrapped here, once an app, and nowhere else. Who wants messages puts a :class:`Sink` on the stack of the
current context with :func:`diverted`: staging does, and so does a worker for the retry of the task that it runs.

The sinks are asked from the innermost to the outermost, and the first that wants a message has it; what none wants is
sent as if nothing were wrapped. A capture that is open while a task retries itself does not want that retry (see
:meth:`Sending.is_own_retry`), so it goes on to the worker's sink, or to the broker.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from kombu.common import Broadcast

from outbox_relay.publish import backends
from outbox_relay.publish.recorder import Recorder, Sent, StandIn, Tee

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from kombu import Queue

__all__ = ["Sending", "Sent", "Sink", "divert", "diverted", "install", "restore"]

COUNTDOWN = "x-outbox-countdown"  # travels from one wrapped call to the other, and no further


class Sending:
    """A task message that is about to be sent: what a sink decides by."""

    __slots__ = ("app", "countdown", "message", "name", "options")

    def __init__(self, app: Celery, name: str, message: Any, options: dict[str, Any], countdown: float | None) -> None:
        self.app = app
        self.name = name
        self.message = message
        self.options = options
        self.countdown = countdown

    @property
    def headers(self) -> dict[str, Any]:
        headers: dict[str, Any] = self.message.headers
        return headers

    @property
    def task_id(self) -> str:
        return str(self.headers.get("id") or self.message.properties["correlation_id"])

    @property
    def retries(self) -> int:
        """How often the task has been retried, in the message that is about to be sent."""
        headers = self.headers
        if "retries" in headers:
            return int(headers["retries"] or 0)
        body = self.message.body  # protocol 1 has it there
        return int(body.get("retries") or 0) if isinstance(body, dict) else 0

    @property
    def queue(self) -> Queue | None:
        """The queue that Celery routed the message to; None where the sender named an exchange instead."""
        named = self.options.get("queue")
        if named is None and self.options.get("exchange") is None:
            named = self.app.amqp.default_queue
        queue: Queue | None = self.app.amqp.queues[named] if isinstance(named, str) else named
        return queue

    @property
    def is_broadcast(self) -> bool:
        return isinstance(self.queue, Broadcast)

    @property
    def is_own_retry(self) -> bool:
        """Whether this is the next run of the very task that runs now: its retry, or what it replaces itself with."""
        task = self.app.current_worker_task
        return task is not None and task.request.id is not None and task.request.id == self.task_id


class Sink(Protocol):
    """Somebody who takes task messages instead of the broker.

    ``offline`` says that what it takes may touch neither broker nor result backend: then Celery is given no producer
    from its pool, and the result backend hears nothing. ``tees`` says that it only listens: the message is sent all
    the same.
    """

    app: Celery
    offline: bool
    tees: bool

    def wants(self, sending: Sending) -> bool:
        """Decide whether to take this message. May raise: then nothing is sent at all."""

    def take(self, sent: Sent) -> None:
        """Take the finished message. What this raises is raised by the call that sends."""


_sinks: ContextVar[tuple[Sink, ...]] = ContextVar("outbox_relay_sinks", default=())


@contextmanager
def diverted(sink: Sink) -> Iterator[None]:
    """Offer the messages of ``sink.app`` that are sent in this context to ``sink`` first."""
    install(sink.app)
    before, inside = divert(sink)
    try:
        yield
    finally:
        # Not ContextVar.reset: a generator may be closed in another context than the one that it was started in.
        now = _sinks.get()
        _sinks.set(before if now is inside else tuple(one for one in now if one is not sink))


Sinks = tuple[Sink, ...]


def divert(sink: Sink) -> tuple[Sinks, Sinks]:
    """Do what :func:`diverted` does, for who has installed the wrappers and cannot afford a context manager.

    Returns the sinks before and after; give the former to :func:`restore`, in the same context.
    """
    before = _sinks.get()
    inside = (*before, sink)
    _sinks.set(inside)
    return before, inside


def restore(before: Sinks) -> None:
    """End what :func:`divert` began."""
    _sinks.set(before)


def innermost(app: Celery) -> Sink | None:
    """The sink that is asked first for what the app sends in this context."""
    return next((sink for sink in reversed(_sinks.get()) if sink.app is app), None)


def is_offline(app: Celery) -> bool:
    """Whether a sink of this context keeps the app away from its broker and result backend."""
    return any(sink.offline and sink.app is app for sink in _sinks.get())


def install(app: Celery) -> None:
    """Wrap the app's sending, once. Without a sink in the context, every call goes through as it was."""
    amqp = app.amqp
    if hasattr(amqp.send_task_message, "__outbox__"):
        backends.install(app, lambda: is_offline(app))
        return
    create, send, producer_or_acquire = amqp.create_task_message, amqp.send_task_message, app.producer_or_acquire
    stand_in = StandIn(app, producer_or_acquire)

    def create_task_message(
        task_id: str, name: str, args: Any = None, kwargs: Any = None, countdown: Any = None, *rest: Any, **options: Any
    ) -> Any:
        message = create(task_id, name, args, kwargs, countdown, *rest, **options)
        if countdown and _sinks.get():
            message.headers[COUNTDOWN] = countdown
        return message

    def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        countdown = message.headers.pop(COUNTDOWN, None)
        sinks = _sinks.get()
        if sinks:
            sending = Sending(app, name, message, options, countdown)
            for sink in reversed(sinks):
                if sink.app is app and sink.wants(sending):
                    about = {"task": name, "task_id": sending.task_id, "queue": sending.queue, "countdown": countdown}
                    if sink.tees:
                        return send(Tee(producer, stand_in, sink.take, **about), name, message, **options)
                    recorder = Recorder(stand_in, sink.take, **about)
                    return send(recorder, name, message, **{**options, "retry": False})
        if isinstance(producer, StandIn):
            with producer_or_acquire(None) as real:
                return send(real, name, message, **options)
        return send(producer, name, message, **options)

    def acquire(producer: Any = None) -> Any:
        if producer is None and is_offline(app):
            producer = stand_in
        return nullcontext(producer) if producer is stand_in else producer_or_acquire(producer)

    send_task_message.__outbox__ = True  # type: ignore[attr-defined]  # marks the wrapper
    amqp.create_task_message, amqp.send_task_message = create_task_message, send_task_message
    app.producer_or_acquire = app.default_producer = acquire
    backends.install(app, lambda: is_offline(app))
