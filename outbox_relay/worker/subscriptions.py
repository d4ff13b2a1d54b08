"""Which queues a worker consumes: its usual ones, each for the namespaces that it serves, and for its node.

A worker that serves all namespaces cannot know them. Its beacons say what it consumes, and a relay, which knows the
namespaces, corrects it with the control command ``outbox_subscribe``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.consumer.tasks import Tasks
from celery.worker.control import control_command
from kombu import Exchange
from kombu.common import Broadcast

from outbox_relay.core.placement import DEFAULT_NAMESPACE, Route, name_fault, route_fault
from outbox_relay.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kombu import Queue

    from outbox_relay.events import Events
    from outbox_relay.publish.queues import Queues

ALL = "all"
MANY_QUEUES = 300
ADVICE = "give it --outbox-namespaces, and others the rest, or let namespaces share queues (outbox_namespace_queues)"
DIRECT_EXCHANGE = "C.dq2"  # of worker_direct: a queue to one worker has no namespaces


def read_namespaces(option: str | None) -> tuple[str, ...] | None:
    """Read ``--outbox-namespaces``: names with commas between them, or None for all of them.

    Raises:
        SettingsError: a name is outside the rule for names.
    """
    if option is None or option == ALL:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in option.split(",")))
    for name in names:
        if fault := name_fault(name):
            raise SettingsError(f"--outbox-namespaces {option}: {name!r}: {fault}")
    return names


class Subscriptions:
    """The queues of one worker. ``serves`` are the namespaces whose queues it consumes now."""

    def __init__(
        self, app: Any, queues: Queues, events: Events, *, node: str | None, namespaces: str | None, separate: bool
    ) -> None:
        """Note the usual queues, and select those that the worker is to start with.

        ``separate`` is ``outbox_namespace_queues``: whether namespaces have queues of their own.

        Raises:
            SettingsError: a namespace or the node has a name outside the rule for names, or namespaces are named that
                share their queues with all others.
        """
        if node is not None and (fault := name_fault(node)):
            raise SettingsError(f"--outbox-node {node}: {fault}")
        self.node = node
        self.namespaces = read_namespaces(namespaces)
        if self.namespaces is not None and not separate:
            raise SettingsError(
                f"--outbox-namespaces {namespaces}: with outbox_namespace_queues = False all namespaces share their "
                "queues, and a worker serves all of them; leave the option out"
            )
        self.serves: tuple[str, ...] = ()
        self._app = app
        self._queues = queues
        self._events = events
        self._separate = separate
        self._warned: set[str] = set()
        self._usual = [name for name, queue in app.amqp.queues.consume_from.items() if _is_task_queue(queue)]
        self._start(self.namespaces or (DEFAULT_NAMESPACE,))

    def _start(self, namespaces: tuple[str, ...]) -> None:
        """Choose what the consumer takes up as it starts; a namespace that is not listed is not served."""
        table = self._app.amqp.queues
        for queue in self.queues_of(namespaces):
            if queue.name not in table.consume_from:
                self._select(queue)
        if self._separate and DEFAULT_NAMESPACE not in namespaces:
            table.deselect(self._usual)
        if self._separate and self.namespaces is None:
            self._foresee_quorum()
        self.serves = namespaces

    def _foresee_quorum(self) -> None:
        """Let the worker count its prefetch by the queue from the start, where quorum queues may be added later.

        A quorum queue cannot be consumed with a prefetch that counts over all queues. Celery looks for such queues
        once, as it starts, among all that it knows of: so let it know of one, which nobody consumes or declares.
        """
        table = self._app.amqp.queues
        later = self._queues.queue("outbox.foreseen", plain=False)
        if _is_quorum(later) and not any(map(_is_quorum, table.values())):
            table.select(list(table.consume_from))
            table.add(later)

    def _select(self, queue: Any) -> None:
        """Add a queue to what the worker consumes, also after it has lost its connection."""
        table = self._app.amqp.queues
        ours = queue.name not in table
        table.select_add(queue)
        if ours:  # Celery has given it the app's default exchange, which may be one that sends to all that are bound
            queue.exchange = Exchange("")

    def queues_of(self, namespaces: Iterable[str]) -> list[Queue]:
        """Return the queues of some namespaces on this worker, as a relay declares them."""
        nodes = (None,) if self.node is None else (None, self.node)
        routes = [Route(name, usual, node) for name in namespaces for usual in self._usual for node in nodes]
        return [
            self._queues.target(route.namespace, route.task_queue, route.node).queue
            for route in routes
            if not route_fault(route, namespace_queues=self._separate)
        ]

    def lacks(self, namespaces: Iterable[str]) -> list[str]:
        """Of some namespaces, those that the worker is meant to serve and does not."""
        return [
            name
            for name in dict.fromkeys(namespaces)
            if name not in self.serves and (self.namespaces is None or name in self.namespaces)
        ]

    def add(self, consumer: Any, namespaces: Iterable[str]) -> list[str]:
        """Consume the queues of more namespaces, as far as the worker is meant to. Called in the consumer's thread.

        Returns the names of the queues that are new; one that the broker refuses is left out, and warned about.
        """
        if consumer.task_consumer is None:
            return []  # between two connections; a relay asks again
        added: list[str] = []
        for namespace in self.lacks(namespaces):
            ready = True
            for queue in self.queues_of([namespace]):
                if queue.name in self._app.amqp.queues.consume_from:
                    continue
                if self._consume(consumer, queue):
                    added.append(queue.name)
                else:
                    ready = False
            if ready:
                self.serves = (*self.serves, namespace)
        self.warn_of_many()
        return added

    def warn_of_many(self) -> None:
        """Say so where a worker consumes more queues than is good for it."""
        if (count := len(self._app.amqp.queues.consume_from)) > MANY_QUEUES:
            self._warn("many", f"this worker consumes {count} queues: {ADVICE}")

    def _consume(self, consumer: Any, queue: Any) -> bool:
        if _is_quorum(queue) and counts_over_all(consumer):
            self._warn(
                queue.name,
                f"{queue.name} is a quorum queue, and cannot be added to a worker that started without any: restart "
                "it, with worker_detect_quorum_queues on and a quorum queue or task_default_queue_type in its app",
            )
            return False
        try:
            # On a channel of its own: a refused declaration closes its channel, and must not close the consumer's.
            with consumer.connection.channel() as channel:
                queue(channel).declare()
        except consumer.channel_errors as error:
            self._warn(queue.name, f"{queue.name} cannot be consumed: {error}")
            return False
        self._select(queue)
        consumer.add_task_queue(queue.name)
        return True

    def _warn(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._events.emit("worker.warning", text=text)


def _is_quorum(queue: Any) -> bool:
    return (queue.queue_arguments or {}).get("x-queue-type") == "quorum"


def counts_over_all(consumer: Any) -> bool:
    """Whether a worker's prefetch counts over all of its queues together, which no quorum queue allows."""
    noted = getattr(consumer, "qos_global", None)
    if noted is None:  # Celery before 5.6 does not note it; before 5.5 it knows of nothing else
        asked = getattr(Tasks, "qos_global", None)
        noted = True if asked is None else asked(None, consumer)
    return bool(noted)


def _is_task_queue(queue: Queue) -> bool:
    return not isinstance(queue, Broadcast) and (queue.exchange is None or queue.exchange.name != DIRECT_EXCHANGE)


@control_command(variadic="namespaces", signature="[namespace1 [namespace2 ... [namespaceN]]]")  # type: ignore[untyped-decorator]
def outbox_subscribe(state: Any, namespaces: Any = (), **_: Any) -> dict[str, str]:
    """Consume the queues of these namespaces, too."""
    office = getattr(state.consumer, "outbox", None)
    if office is None:
        return {"error": "the outbox is switched off in this worker"}
    names = [namespaces] if isinstance(namespaces, str) else list(namespaces or ())
    for name in names:
        if fault := name_fault(name):
            return {"error": f"{name!r}: {fault}"}
    state.consumer.call_soon(office.subscribe, state.consumer, names)
    return {"ok": f"consuming for {', '.join(names)}"}
