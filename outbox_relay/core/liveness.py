"""Which workers live, by the beacons that relays have read: liveness that is not known is not death."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta

GAP_BEATS = 2  # beacons that were last read so many heartbeats ago are not being read
PATIENCE_BEATS = 3
JUMP_BEATS = 0.5


@dataclass(frozen=True, slots=True)
class Sign:
    """The last beacon of a worker that is in the register; ``queues`` is everything that it consumes."""

    instance: str
    queues: tuple[str, ...]
    last_seen_at: datetime


@dataclass(slots=True)
class Liveness:
    """Judges workers by the register, look by look.

    A worker lives while it was seen within ``ttl``. It is dead only where that has another reason than that nobody
    reads beacons: relays have to have read them without a gap for three heartbeats. Until then those go on living that
    lived at the last look, or, at the first one, that were as fresh as anybody when reading stopped.
    """

    ttl: timedelta
    heartbeat: timedelta
    _since: float | None = None
    _last: float | None = None
    _offset: float | None = None
    _lived: dict[str, tuple[str, ...]] | None = field(default=None)

    def look(
        self, signs: Iterable[Sign], *, now: datetime, read_at: datetime | None, clock: float
    ) -> dict[str, tuple[str, ...]]:
        """Return the live workers, each with its queues.

        ``now`` and ``read_at`` (when some relay had last read all beacons there were) are the database's instants,
        ``clock`` the caller's monotonic seconds.
        """
        known = self._reads_on(now, read_at, clock)
        signs = list(signs)
        live = {one.instance: one.queues for one in signs if one.last_seen_at > now - self.ttl}
        if not known:
            if self._lived is None:
                newest = max((one.last_seen_at for one in signs), default=now)
                before = {one.instance for one in signs if one.last_seen_at > newest - self.ttl}
            else:
                before = set(self._lived)
            live |= {one.instance: one.queues for one in signs if one.instance in before}
        self._lived = live
        return live

    def _reads_on(self, now: datetime, read_at: datetime | None, clock: float) -> bool:
        """Whether beacons have been read without a gap for three heartbeats, and are still."""
        beat = self.heartbeat.total_seconds()
        offset = now.timestamp() - clock
        jumped = self._offset is not None and abs(offset - self._offset) > JUMP_BEATS * beat
        fresh = read_at is not None and (now - read_at).total_seconds() <= GAP_BEATS * beat
        slept = self._last is None or clock - self._last > GAP_BEATS * beat
        self._offset, self._last = offset, clock
        if not fresh or jumped:
            self._since = None
            return False
        if self._since is None or slept:
            self._since = clock
        return clock - self._since >= PATIENCE_BEATS * beat
