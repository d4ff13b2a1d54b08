"""Whether a relay knows enough of its workers to judge their silence: it has been listening without a gap."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

GAP_BEATS = 2  # a reader that does not come round for so many heartbeats may have missed a beacon
JUMP_BEATS = 0.5  # the database's clock has jumped when it moved so many heartbeats against the monotonic one


class Reading:
    """Written by the loop that reads settlements and beacons, read by the one that re-arms."""

    def __init__(self, heartbeat: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._heartbeat = heartbeat.total_seconds()
        self._clock = clock
        self._since: float | None = None
        self._last = clock()
        self._offset: float | None = None

    def goes_on(self) -> None:
        """Everything that the broker had has just been read, and applied."""
        now = self._clock()
        if self._since is None or now - self._last > GAP_BEATS * self._heartbeat:
            self._since = now
        self._last = now

    def breaks(self) -> None:
        """Nothing is read for the time being."""
        self._since = None

    def compare(self, database_now: datetime, asked_at: float) -> None:
        """Compare the database's clock, read between ``asked_at`` (monotonic) and now, with the monotonic one."""
        answered_at = self._clock()
        offset = database_now.timestamp() - (asked_at + answered_at) / 2
        tolerance = JUMP_BEATS * self._heartbeat + (answered_at - asked_at)
        if self._offset is not None and abs(offset - self._offset) > tolerance:
            self.breaks()
        self._offset = offset

    def lasts(self, span: timedelta) -> bool:
        """Whether reading has gone on without a gap for ``span``, and still does."""
        now, since = self._clock(), self._since
        if since is None or now - self._last > GAP_BEATS * self._heartbeat:
            return False
        return now - since >= span.total_seconds()
