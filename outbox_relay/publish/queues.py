"""Which broker queue a row goes to, and how that queue is declared: one definition for relay and worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu import Queue

from outbox_relay.core.placement import Route, queue_name, route_fault
from outbox_relay.errors import PublishError

if TYPE_CHECKING:
    from celery import Celery

    from outbox_relay.settings import Settings

SETTLEMENTS = "outbox.settlements."
BEACONS = "outbox.beacons."
RELAY = "outbox.relay."
CACHED_TARGETS = 10_000


@dataclass(frozen=True, slots=True)
class Target:
    """Where a message is published to (``exchange``, ``routing_key``), and the queue that it is meant for."""

    queue: Queue
    exchange: str
    routing_key: str

    @property
    def declares(self) -> bool:
        """Whether declaring the queue makes the way to it: not where the sender named an exchange of another's."""
        if not self.exchange:
            return True
        exchanges = [self.queue.exchange, *(binding.exchange for binding in self.queue.bindings or ())]
        return any(one is not None and one.name == self.exchange for one in exchanges)

    @classmethod
    def direct(cls, queue: Queue) -> Target:
        """The queue itself, by way of the default exchange."""
        return cls(queue, "", queue.name)


class Queues:
    """The queues of one outbox on one app."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._namespace_queues = settings.namespace_queues
        self._targets: dict[tuple[str, str, str | None, str, str], Target] = {}
        self.settlements = own_queue(SETTLEMENTS + settings.name)
        self.beacons = own_queue(BEACONS + settings.name)
        self.relay = own_queue(RELAY + settings.name)

    def target(
        self, namespace: str, task_queue: str, node: str | None = None, exchange: str = "", routing_key: str = ""
    ) -> Target:
        """Say where a row goes.

        A row of ``default`` without a node goes where Celery itself would have sent it: ``exchange`` and
        ``routing_key`` are the row's own. Every other row goes to its queue through the default exchange.

        Raises:
            PublishError: no queue can be named after the row's route.
        """
        key = (namespace, task_queue, node, exchange, routing_key)
        if (known := self._targets.get(key)) is not None:
            return known
        target = self._make_target(Route(namespace, task_queue, node), exchange, routing_key)
        if len(self._targets) >= CACHED_TARGETS:
            self._targets.clear()
        self._targets[key] = target
        return target

    def _make_target(self, route: Route, exchange: str, routing_key: str) -> Target:
        if fault := route_fault(route, namespace_queues=self._namespace_queues):
            raise PublishError(fault)
        if not route.plain:
            name = queue_name(route, namespace_queues=self._namespace_queues)
            return Target.direct(self.queue(name, plain=name == route.task_queue))
        queue = self.queue(route.task_queue)
        return Target(queue, exchange, routing_key) if exchange or routing_key else Target.direct(queue)

    def queue(self, name: str, *, plain: bool = True) -> Any:
        """Return the definition of the queue ``name``.

        One that the app declares is as the app declares it. Another is as Celery would make it at first use where it
        is ``plain`` (a stock worker consumes it too, and the two declarations have to agree), else durable, of
        ``task_default_queue_type``.
        """
        table: Any = self._app.amqp.queues
        if name in table:
            return table[name]
        if plain and table.create_missing:
            queue = table.new_missing(name)
            if table.default_exchange and (queue.exchange is None or not queue.exchange.name):
                queue.exchange = table.default_exchange
        else:
            kind = getattr(self._app.conf, "task_default_queue_type", None)  # Celery 5.5 and newer
            arguments = {"x-queue-type": kind} if kind and kind != "classic" else None
            queue = Queue(name, routing_key=name, durable=True, queue_arguments=arguments)
        if table.max_priority is not None:
            queue.queue_arguments = {"x-max-priority": table.max_priority, **(queue.queue_arguments or {})}
        return queue


def own_queue(name: str) -> Queue:
    """Return the definition of a queue of the outbox's own: durable and classic, whatever the app's default is."""
    arguments: dict[str, Any] = {"x-queue-type": "classic"}
    return Queue(name, routing_key=name, durable=True, queue_arguments=arguments)


def settlements_queue(name: str) -> Queue:
    """Return the settlement queue that a message's ``x-outbox`` header names."""
    return own_queue(name)


def beacons_for(settlement_queue_name: str) -> Queue:
    """Return the beacon queue that belongs to a settlement queue: ``outbox.settlements.X`` -> ``outbox.beacons.X``.

    Raises:
        PublishError: the name is not one of a settlement queue.
    """
    if not settlement_queue_name.startswith(SETTLEMENTS):
        raise PublishError(f"{settlement_queue_name!r} is not a settlement queue: its name starts with {SETTLEMENTS!r}")
    return own_queue(BEACONS + settlement_queue_name.removeprefix(SETTLEMENTS))
