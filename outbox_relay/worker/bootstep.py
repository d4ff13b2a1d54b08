"""The consumer's bootstep: it joins a worker to the outbox, for as long as the worker lives."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import bootsteps

from outbox_relay.core.beacon import Beacon
from outbox_relay.core.wire import Reporter as WorkerName
from outbox_relay.errors import SettingsError
from outbox_relay.publish.publisher import open_publisher
from outbox_relay.publish.queues import Queues
from outbox_relay.settings import Settings
from outbox_relay.worker import outcomes
from outbox_relay.worker.desk import Desk
from outbox_relay.worker.intake import attend
from outbox_relay.worker.reporter import Reporter
from outbox_relay.worker.subscriptions import Subscriptions
from outbox_relay.worker.warnings import warnings_of

if TYPE_CHECKING:
    from outbox_relay.worker.install import OutboxLike

NAMESPACES_AT_ONCE = 50
BREATH = 0.05  # seconds in which the consumer does its other work
BEACONS_KEPT = 3  # a relay that has been away for longer learns nothing from older ones


class OutboxStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery is not typed
    """Starts the reporter, and stops it after the last task."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    label = "Outbox"

    def __init__(self, c: Any, outbox_node: str | None = None, outbox_namespaces: str | None = None, **kwargs: Any):
        outbox: OutboxLike = c.app.outbox
        self.enabled = outbox.enabled
        if self.enabled:
            try:
                self.office: Office | None = Office(c, outbox, outbox_node, outbox_namespaces)
            except SettingsError as error:
                raise SystemExit(f"outbox: {error}") from None
        super().__init__(c, **kwargs)

    def start(self, c: Any) -> None:
        """Called at the start, and again after each loss of the connection to the broker."""
        assert self.office is not None
        self.office.open(c)

    def stop(self, c: Any) -> None:
        """Not yet: a warm shutdown calls this at once, while tasks run on."""

    def terminate(self, c: Any) -> None:
        """Not yet, either: the pool's last words are still to come."""

    def shutdown(self, c: Any) -> None:
        """The pool has been drained or ended: nothing more will be heard of what is still open."""
        assert self.office is not None
        self.office.close()


class Office:
    """What a worker has of the outbox: the desk, the reporter, and what it says of itself."""

    def __init__(self, consumer: Any, outbox: OutboxLike, node: str | None, namespaces: str | None) -> None:
        self.app = consumer.app
        self.settings = Settings.from_conf(self.app.conf, main=self.app.main, needs_database=False)
        self.queues = Queues(self.app, self.settings)
        self.events = outbox.events
        self.subscriptions = Subscriptions(
            self.app,
            self.queues,
            self.events,
            node=node,
            namespaces=namespaces,
            separate=self.settings.namespace_queues,
        )
        self.instance = uuid4()
        self.hostname = str(consumer.hostname)
        self.pool = pool_name(consumer.pool)
        self.drain = self.settings.drain_timeout.total_seconds()
        self._born = time.monotonic()
        self._opened = False
        self.reporter = Reporter(
            WorkerName(self.instance, self.hostname),
            lambda: open_publisher(self.app, events=self.events),
            self.events,
            heartbeat=self.settings.heartbeat,
            beacon_life=BEACONS_KEPT * self.settings.heartbeat,
        )
        self.desk = Desk(self.reporter, self.events, retry_for=self.settings.retry_for)
        self.reporter.describe, self.reporter.newly_running = self.beacon, self.desk.newly_running
        consumer.outbox = self
        attend(consumer, self.desk)

    def open(self, consumer: Any) -> None:
        if self._opened:
            self.desk.forget_returned()
            return
        self._opened = True
        self.reporter.start((self.queues.settlements.name,))
        self.events.emit("worker.started", instance=self.instance)
        for text in warnings_of(self.app, self.pool, self.settings):
            self.events.emit("worker.warning", text=text)
        self.subscriptions.warn_of_many()

    def close(self) -> None:
        left = self.desk.open_jobs()
        for job in left:
            self.desk.end(job, outcomes.of_departure)
        running = any(job.started for job in left)  # a cold shutdown; who knows when the last of them ends
        self.reporter.stop(self.drain, farewell=not running)

    def subscribe(self, consumer: Any, namespaces: list[str]) -> None:
        """A relay says which namespaces there are: take up a few at a time, for the consumer has other work, too."""
        lacking = self.subscriptions.lacks(namespaces)
        now, later = lacking[:NAMESPACES_AT_ONCE], lacking[NAMESPACES_AT_ONCE:]
        if self.subscriptions.add(consumer, now):
            self.reporter.beacon_soon()
        if later and consumer.hub:
            consumer.hub.call_later(BREATH, self.subscribe, consumer, later)
        elif later:
            consumer.call_soon(self.subscribe, consumer, later)

    def beacon(self, settlement_queue: str) -> Beacon:
        """What this worker says to the outbox that reads ``settlement_queue``."""
        return Beacon(
            instance=self.instance,
            hostname=self.hostname,
            pool=self.pool,
            node=self.subscriptions.node,
            namespaces=self.subscriptions.namespaces,
            serves=self.subscriptions.serves,
            queues=tuple(self.app.amqp.queues.consume_from),
            held=self.desk.held(settlement_queue),
            age=time.monotonic() - self._born,
        )


def pool_name(pool: Any) -> str:
    name = type(pool).__module__.rpartition(".")[2]
    return {"thread": "threads"}.get(name, name)
