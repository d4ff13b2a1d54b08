"""Ask workers to consume the queues of namespaces that they are meant to serve, and do not serve yet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outbox_relay.errors import PublishError, StoreAway
from outbox_relay.publish.reconnect import errand

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.core.beacon import Beacon
    from outbox_relay.relay.parts import Parts

COMMAND = "outbox_subscribe"
ASK_AGAIN_BEATS = 3  # a worker that was asked and did not follow is asked again after so many beacons
NAMES_AT_ONCE = 1_000


class Subscriptions:
    """Knows the workers by their beacons, and the namespaces by the database."""

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._clock = clock
        self._on = parts.settings.namespace_queues
        self._heartbeat = parts.leases.heartbeat.total_seconds()
        self._look_at = clock()
        self._beacons: dict[str, tuple[float, Beacon]] = {}
        self._asked: dict[str, dict[str, float]] = {}  # when a worker was asked to serve a namespace
        self._new: set[str] = set()  # workers that have just started, under a name that may have been another's

    def note(self, beacon: Beacon) -> None:
        """A worker said what it serves. Called from the settling loop."""
        if self._on and not beacon.partial:
            known = self._beacons.get(beacon.hostname)
            self._beacons[beacon.hostname] = self._clock(), beacon
            if known is None or known[1].instance != beacon.instance:
                self._new.add(beacon.hostname)
                self.look()

    def look(self) -> None:
        """A namespace has been met for the first time: look soon."""
        self._look_at = self._clock()

    def tick(self) -> float:
        """Ask who lacks something. Return how many seconds the next call may wait."""
        if not self._on:
            return self._heartbeat
        if (left := self._look_at - self._clock()) <= 0:
            left = self._heartbeat
            self._look_at = self._clock() + left
            try:
                self._ask(self._parts.store.governing.names() if self._beacons else [])
            except StoreAway:
                pass  # the loops that cannot do without it say so
            except PublishError:
                self._asked.clear()  # the broker is away; another beacon brings us back here
        return left

    def _ask(self, namespaces: list[str]) -> None:
        now = self._clock()
        silent = self._parts.settings.worker_ttl.total_seconds()
        while self._new:
            self._asked.pop(self._new.pop(), None)
        for hostname, (seen, beacon) in list(self._beacons.items()):
            if now - seen > silent:
                del self._beacons[hostname]
                self._asked.pop(hostname, None)
                continue
            wanted = namespaces if beacon.namespaces is None else [n for n in namespaces if n in beacon.namespaces]
            serves = set(beacon.serves)
            lacking = [name for name in wanted if name not in serves and self._may_ask(hostname, name, now)]
            for begin in range(0, len(lacking), NAMES_AT_ONCE):
                arguments = {"namespaces": lacking[begin : begin + NAMES_AT_ONCE]}
                with errand(self._parts.app) as connection:
                    self._parts.app.control.broadcast(
                        COMMAND, arguments=arguments, destination=[hostname], reply=False, connection=connection
                    )

    def _may_ask(self, hostname: str, namespace: str, now: float) -> bool:
        """Not twice before the worker has had time to say that it follows."""
        asked = self._asked.setdefault(hostname, {})
        if now - asked.get(namespace, float("-inf")) < ASK_AGAIN_BEATS * self._heartbeat:
            return False
        asked[namespace] = now
        return True
