"""Queues that do not take messages: rows for them wait, and nobody tries again before it is time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from random import random
from typing import TYPE_CHECKING

from outbox_relay.core.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.events import Events

PAUSES = Backoff(timedelta(seconds=1), 2.0, timedelta(seconds=60), 0.1)


@dataclass(slots=True)
class _Open:
    failures: int
    until: float
    reason: str


class Circuits:
    """The circuits of all queues that one relay publishes to. A circuit is open while its queue refuses messages."""

    def __init__(self, events: Events, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._clock = clock
        self._open: dict[str, _Open] = {}

    def __bool__(self) -> bool:
        """Whether any circuit is open."""
        return bool(self._open)

    def refuses(self, queue: str) -> tuple[timedelta, str] | None:
        """Say how long ``queue`` is not to be tried yet, and why; None where it may be tried."""
        circuit = self._open.get(queue)
        if circuit is None or (left := circuit.until - self._clock()) <= 0:
            return None
        return timedelta(seconds=left), circuit.reason

    def opened(self, queue: str, reason: str, rows: int) -> timedelta:
        """``queue`` did not take ``rows`` messages. Return how long they are to wait."""
        circuit = self._open.get(queue)
        if circuit is None:
            self._events.emit("sweep.undeliverable", queue=queue, rows=rows, reason=reason)
        failures = 0 if circuit is None else circuit.failures + 1
        delay = PAUSES.delay(failures, random())
        self._open[queue] = _Open(failures, self._clock() + delay.total_seconds(), reason)
        return delay

    def took(self, queue: str) -> None:
        """``queue`` took a message."""
        if self._open.pop(queue, None) is not None:
            self._events.emit("sweep.delivered", queue=queue)
