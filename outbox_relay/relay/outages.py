"""How the loops of a relay bear that the database or the broker is away: one event an outage, and growing pauses."""

from __future__ import annotations

import threading
from datetime import timedelta
from random import random
from typing import TYPE_CHECKING

from outbox_relay.core.backoff import Backoff
from outbox_relay.events import Events

if TYPE_CHECKING:
    from typing import Any

LONGEST_PAUSE = 3.0  # seconds
PAUSES = Backoff(timedelta(seconds=0.1), 2.0, timedelta(seconds=LONGEST_PAUSE), 0.25)


class OneVoice:
    """One word for an outage that several loops meet, each on connections of its own.

    It is told when the first of them meets it, and that it is over when the last of them has found out.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._away: dict[str, set[Voice]] = {}
        self._lock = threading.Lock()

    def voice(self) -> Voice:
        """Return what one loop tells its events to."""
        return Voice(self)

    def hear(self, voice: Voice, name: str, fields: dict[str, Any]) -> None:
        what, _, change = name.partition(".")
        if change not in ("lost", "back"):
            self._events.emit(name, **fields)
            return
        with self._lock:
            away = self._away.setdefault(what, set())
            told = bool(away)
            away.add(voice) if change == "lost" else away.discard(voice)
            news = bool(away) != told
        if news:
            self._events.emit(name, **fields)


class Voice(Events):
    """The events of one loop, on their way to those of the relay."""

    def __init__(self, all_of_them: OneVoice) -> None:
        super().__init__()
        self._all = all_of_them

    def emit(self, name: str, **fields: Any) -> None:
        self._all.hear(self, name, fields)


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
