"""The threads of a relay: each calls one ``tick`` again and again, and waits in between for as long as it says."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from outbox_relay.errors import StoreAway

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.relay.health import Pulse

SLOW_TICK = 60.0  # seconds that a tick may take before its loop counts as stuck


class Loop:
    """One loop of a relay.

    Its waits end early when somebody rings. The ring is a level, not an edge: one that comes while a tick runs makes
    the next tick follow at once. With ``echo`` a ring is followed by one more tick, so many seconds later: a second
    ring may have been held back for that long.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], float],
        *,
        drain: Callable[[], None] | None = None,
        on_death: Callable[[str, BaseException], None],
        pulse: Pulse,
        echo: float | None = None,
    ) -> None:
        self.name = name
        self._tick = tick
        self._drain = drain
        self._on_death = on_death
        self._pulse = pulse
        self._echo = echo
        self._bell = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"outbox-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ring(self) -> None:
        """End the wait, now or as soon as it begins."""
        self._bell.set()

    def stop(self) -> None:
        """Let the tick that runs be the last one, and drain after it."""
        self._stopping.set()
        self._bell.set()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; tell whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            try:
                self._turn()
            finally:
                if self._drain is not None:
                    self._drain()
        except StoreAway:
            pass  # while draining: the leases of what was not given back end by themselves
        except BaseException as error:  # noqa: BLE001 - whatever it is, the process must not live on without this loop
            self._on_death(self.name, error)

    def _turn(self) -> None:
        echo_at: float | None = None
        while True:
            if rung := self._bell.is_set():
                self._bell.clear()  # and only then: a ring that comes after the look is for the wait below
            if self._stopping.is_set():  # looked at last: who stops a loop rings after he has said so
                return
            if rung and self._echo is not None:
                echo_at = time.monotonic() + self._echo
            elif echo_at is not None and time.monotonic() >= echo_at:
                echo_at = None  # this tick is the echo
            self._pulse.beat(self.name, SLOW_TICK)
            delay = self._tick()
            if echo_at is not None:
                delay = min(delay, max(echo_at - time.monotonic(), 0.0))
            if delay > 0:
                self._pulse.beat(self.name, delay + SLOW_TICK)
                self._bell.wait(delay)
