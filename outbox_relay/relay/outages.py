"""How the loops of a relay bear that the database or the broker is away: one event an outage, and growing pauses."""

from __future__ import annotations

from datetime import timedelta
from random import random
from typing import TYPE_CHECKING

from outbox_relay.core.backoff import Backoff

if TYPE_CHECKING:
    from outbox_relay.events import Events

PAUSES = Backoff(timedelta(seconds=0.1), 2.0, timedelta(seconds=3), 0.25)


class Outage:
    """The outage of one thing, as one loop sees it. ``what`` is ``store`` or ``broker``: the events' first word."""

    def __init__(self, events: Events, what: str, **fields: str) -> None:
        self._events = events
        self._what = what
        self._fields = fields
        self._failures = 0

    @property
    def on(self) -> bool:
        return self._failures > 0

    def goes_on(self, error: object) -> float:
        """Another try failed. Return how many seconds to wait before the next one."""
        if not self.on:
            self._events.emit(f"{self._what}.lost", error=str(error) or repr(error), **self._fields)
        self._failures += 1
        return PAUSES.delay(self._failures - 1, random()).total_seconds()

    def is_over(self) -> None:
        """A try went well."""
        if self.on:
            self._failures = 0
            self._events.emit(f"{self._what}.back", **self._fields)
