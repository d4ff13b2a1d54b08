"""How a relay learns that there is something to do before its next poll."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.store.schema import Tables

WINDOW = 0.05


def channel_name(tables: Tables) -> str:
    """The notification channel of an outbox: one for each prefix and schema of a database."""
    place = f"{tables.metadata.schema or ''}.{tables.prefix}"
    return f"outbox_wake_{hashlib.sha256(place.encode()).hexdigest()[:16]}"


class WakeThrottle:
    """At most one notification in ``window`` seconds a process: each makes a database's commits wait in line."""

    def __init__(self, window: float = WINDOW, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window
        self._clock = clock
        self._next = float("-inf")
        self._lock = threading.Lock()

    def allow(self) -> bool:
        """Whether a notification may go out now; true takes the place."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                return False
            self._next = now + self._window
            return True
