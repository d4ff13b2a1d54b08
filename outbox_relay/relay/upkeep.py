"""What a relay does now and then: re-arm, prune, look after the registry, and forget processes that are long gone."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_relay.errors import StoreAway

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.publish.receipts import Publisher
    from outbox_relay.relay.parts import Parts
    from outbox_relay.relay.rearm import Rearm
    from outbox_relay.relay.subscriptions import Subscriptions

PRUNE_EVERY = 60.0
PRUNE_BATCH = 5_000
PRUNE_PAUSE = 0.1  # seconds between two batches, for whoever claims meanwhile
FORGET_AFTER = timedelta(days=1)
PULSE = 1.0
REARM, PRUNE = "outbox_relay.rearm", "outbox_relay.prune"  # the names of beat's entries


class Upkeep:
    """The timers of a relay. Call :meth:`tick` again and again; it says when to call it next."""

    def __init__(
        self,
        parts: Parts,
        publisher: Publisher,
        rearm: Rearm,
        subscriptions: Subscriptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._publisher = publisher
        self._rearm = rearm
        self._subscriptions = subscriptions
        self._clock = clock
        self._prune_at = clock() + PRUNE_EVERY

    def tick(self) -> float:
        """Do what is due. Return how many seconds the next call may wait."""
        self._publisher.pulse()
        if tend(self._parts):
            self._subscriptions.look()
        return min(self._rearm.tick(), self._prune(), self._subscriptions.tick(), PULSE)

    def wish(self, name: str) -> None:
        """Beat, or an operator, asks for one of them now."""
        if name == REARM:
            self._rearm.ask()
        elif name == PRUNE:
            self._prune_at = self._clock()

    def drain(self) -> None:
        self._publisher.close()

    def _prune(self) -> float:
        if (left := self._prune_at - self._clock()) > 0:
            return left
        settings, store = self._parts.settings, self._parts.store
        pause = PRUNE_EVERY
        try:
            pruned = store.prune(done=settings.retention_done, failed=settings.retention_failed, limit=PRUNE_BATCH)
            if pruned:
                self._parts.events.emit("prune.pruned", rows=pruned)
                pause = PRUNE_PAUSE
            else:
                store.forget_processes(FORGET_AFTER)
        except StoreAway:
            pass  # the loops that cannot do without it say so
        self._prune_at = self._clock() + pause
        return pause


def tend(parts: Parts) -> bool:
    """Look after the registry of namespaces, which says itself when it is time; tell whether it has new names.

    Every relay does: one that claims knows which namespaces had rows, and has to know those that nobody can register
    yet.
    """
    try:
        names = parts.store.tend_namespaces()
    except StoreAway:
        return False  # the loops that cannot do without it say so
    if names:
        parts.events.emit("namespaces.registered", namespaces=", ".join(names))
    return bool(names)
