"""What ``check`` has to say about an app's configuration: each finding with its cure. Asks no server."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from outbox_relay.cli.session import REDIS, transport_of
from outbox_relay.worker.warnings import warnings_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celery import Celery

    from outbox_relay.settings import Settings

CONSUMER_TIMEOUT = 1800  # RabbitMQ's default, in seconds
VISIBILITY_TIMEOUT = 3600  # kombu's default on Redis, in seconds
POOLS = ("prefork", "solo", "threads", "gevent", "eventlet")


class Level(str, Enum):
    """How much a finding matters: a fault keeps the outbox from working, a warning does not."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    subject: str
    text: str
    cure: str | None = None


def fine(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, text)


def warning(subject: str, text: str, cure: str) -> Finding:
    return Finding(Level.WARNING, subject, text, cure)


def fault(subject: str, text: str, cure: str) -> Finding:
    return Finding(Level.FAULT, subject, text, cure)


def advise(app: Celery, settings: Settings | None) -> list[Finding]:
    """Look at the app's configuration, its tasks and its queues."""
    transport = transport_of(app)
    tasks = [task for name, task in sorted(app.tasks.items()) if not name.startswith("celery.")]
    found = [*_transport(transport), *_tasks(app, settings), *_queues(app, settings)]
    match transport:
        case "amqp" | "pyamqp" | "amqps" | "librabbitmq":
            found += _rabbitmq(app, tasks)
        case _ if transport in REDIS:
            found += _redis(app, tasks)
    return found


def _transport(transport: str) -> Iterator[Finding]:
    if transport == "memory":
        yield fault(
            "broker",
            "memory:// lives inside one process: a relay and a worker would never meet",
            "use a broker that both can reach, or embedded:///.outbox/broker for one machine",
        )
    if transport == "filesystem":
        yield warning(
            "broker",
            "kombu's filesystem transport loses messages when a worker is killed, and when two processes write at once",
            "write embedded:///folder instead of filesystem://",
        )


def _tasks(app: Celery, settings: Settings | None) -> Iterator[Finding]:
    if app.conf.task_always_eager:
        yield warning(
            "tasks",
            "task_always_eager is on: delay() runs a task at once, in the caller's process, and stages nothing",
            "leave task_always_eager off wherever the outbox is on",
        )
    if settings is not None:
        for text in warnings_of(app, _pool(app), settings):
            yield Finding(Level.WARNING, "worker", text)


def _pool(app: Celery) -> str:
    """The pool that the configuration asks for, by its short name; ``worker --pool`` may say otherwise."""
    name = str(app.conf.worker_pool)
    return next((short for short in POOLS if short in name), name)


def _rabbitmq(app: Celery, tasks: Sequence[Any]) -> Iterator[Finding]:
    late = [task for task in tasks if task.acks_late]
    long = [task for task in late if (_limit(app, task) or CONSUMER_TIMEOUT + 1) > CONSUMER_TIMEOUT]
    if long:
        yield warning(
            "broker",
            f"{named(long)} acknowledge late and may run longer than RabbitMQ's consumer timeout (30 minutes, unless "
            "the server says otherwise), which ends the worker's connection and runs the task again",
            "give them a time_limit below 1800, or raise consumer_timeout in rabbitmq.conf",
        )
    if late and not app.conf.get("worker_cancel_long_running_tasks_on_connection_loss"):
        yield warning(
            "broker",
            f"after a lost connection {named(late)} may run twice at once: the broker delivers them again while they "
            "still run",
            "worker_cancel_long_running_tasks_on_connection_loss = True, or outbox.once(session) in the task",
        )


def _redis(app: Celery, tasks: Sequence[Any]) -> Iterator[Finding]:
    options = app.conf.broker_transport_options or {}
    visible = options.get("visibility_timeout", VISIBILITY_TIMEOUT)
    long = [task for task in tasks if task.acks_late and (_limit(app, task) or visible + 1) > visible]
    if long:
        yield warning(
            "broker",
            f"{named(long)} acknowledge late and may run longer than Redis's visibility timeout of {visible} s, after "
            "which they are delivered again while they run",
            f"give them a time_limit below {visible}, or raise visibility_timeout in broker_transport_options",
        )


def _queues(app: Celery, settings: Settings | None) -> Iterator[Finding]:
    queues = list(app.amqp.queues.values())
    quorum = [queue for queue in queues if _argument(queue, "x-queue-type") == "quorum"]
    if quorum or app.conf.get("task_default_queue_type") == "quorum":
        yield warning(
            "queues",
            "with quorum queues a worker's prefetch counts for each queue, not for all: it may reserve that many tasks "
            "of every queue it serves",
            "keep worker_prefetch_multiplier at 1, or give busy workers fewer queues with -Q",
        )
    for queue in queues:
        yield from _queue(queue, settings)


def _queue(queue: Any, settings: Settings | None) -> Iterator[Finding]:
    if _argument(queue, "x-dead-letter-exchange") is not None:
        yield warning(
            "queues",
            f"queue {queue.name} has a dead-letter exchange: a message that expires unread goes there, while its row "
            "is published again; whoever consumes it there runs the task twice",
            "do not run tasks from its dead-letter queue (their x-death header says why they are there)",
        )
    ttl = _argument(queue, "x-message-ttl")
    if settings is not None and isinstance(ttl, (int, float)) and ttl / 1000 < settings.queue_lease.total_seconds():
        yield warning(
            "queues",
            f"queue {queue.name} drops messages after {ttl / 1000:g} s: their rows wait until outbox_queue_lease "
            f"({settings.queue_lease.total_seconds():g} s) is over",
            f"remove x-message-ttl from the queue, or write outbox_queue_lease = {max(ttl / 1000, 50):g}",
        )
    if _argument(queue, "x-max-length") is not None and _argument(queue, "x-overflow") in (None, "drop-head"):
        yield warning(
            "queues",
            f"queue {queue.name} drops its oldest messages when it is full: their rows wait until outbox_queue_lease "
            "is over",
            "set x-overflow to reject-publish: the relay then keeps the rows and tries again",
        )


def _argument(queue: Any, name: str) -> Any:
    return (queue.queue_arguments or {}).get(name)


def _limit(app: Celery, task: Any) -> float | None:
    """The hard time limit that ends a task, in seconds."""
    limit: float | None = task.time_limit or app.conf.task_time_limit
    return limit


def named(tasks: Iterable[Any], most: int = 3) -> str:
    """Return the names of tasks, the first few of them."""
    names = [str(task.name) for task in tasks]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
