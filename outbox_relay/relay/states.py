"""Say once, when it changes, what keeps rows back: quotas, holds, and nodes that are not live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outbox_relay.core.directives import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from outbox_relay.core.directives import Directives
    from outbox_relay.events import Events

CALM = 10.0  # seconds that a namespace stays below its quota before it is said to be
SHOWN = 5


class States:
    """What a sweeping relay last said of the namespaces. A namespace that comes and goes at its quota is said once."""

    def __init__(self, events: Events, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._clock = clock
        self._said: Directives = NOTHING
        self._unreadable: str | None = None
        self._waiting: frozenset[str] = frozenset()
        self._at_quota: dict[str, float] = {}
        self._look_at = clock()

    def unreadable(self, reason: str) -> None:
        """Nothing is claimed, because what is said cannot be understood."""
        if reason != self._unreadable:
            self._unreadable = reason
            self._events.emit("hold.unreadable", reason=reason)

    def directed(self, said: Directives) -> None:
        """This is what rows are claimed by from now on."""
        self._unreadable = None
        if said is self._said:
            return
        before, self._said = self._said, said
        for scope in said.holds.keys() | before.holds.keys():
            self._say("hold.began", said.held(scope) - before.held(scope), scope=scope.value)
            self._say("hold.ended", before.held(scope) - said.held(scope), scope=scope.value)
        self._say("placement.unreadable", said.unreadable - before.unreadable)
        waiting = frozenset(said.unserved)
        self._say("placement.waits", waiting - self._waiting)
        self._say("placement.served", (self._waiting - waiting) & said.pinned)
        self._waiting = waiting

    def counted(self, at_quota: frozenset[str]) -> None:
        """A claim left these namespaces without room for another row."""
        now = self._clock()
        new = at_quota - self._at_quota.keys()
        for name in at_quota:
            self._at_quota[name] = now
        self._say("quota.reached", new)
        if self._at_quota and now >= self._look_at:
            self._look_at = now + 1.0
            calm = [name for name, last in self._at_quota.items() if now - last > CALM]
            for name in calm:
                del self._at_quota[name]
            self._say("quota.free", calm)

    def _say(self, event: str, names: Iterable[str], **more: str) -> None:
        every = sorted(names)
        if every:
            rest = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
            self._events.emit(event, names=", ".join(every[:SHOWN]) + rest, **more)
