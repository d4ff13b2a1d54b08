"""The processes that sign the database's registers: relays themselves, workers through their beacons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

WAITS = "waits for its broker"  # stands for the loops of a relay that has none of them at work


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayInfo:
    """A relay as the register has it.

    ``live`` by the database's clock and the relay's own ``live_for`` (seconds). ``applied_at``: every report that it
    had received before then is applied. ``marker``: the last marker of its own that came back, at ``marker_at``.
    """

    instance: UUID
    hostname: str
    loops: str
    live: bool
    live_for: float
    started_at: datetime
    last_seen_at: datetime
    applied_at: datetime | None
    marker: UUID | None
    marker_at: datetime | None

    @property
    def waits(self) -> bool:
        """Whether it does nothing, since its broker is away."""
        return self.loops == WAITS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as its last beacon described it.

    ``namespaces`` None: it serves all. ``live``: it was seen within the time that the reader gave.
    """

    instance: UUID
    hostname: str
    pool: str
    node: str | None
    namespaces: tuple[str, ...] | None
    queues: tuple[str, ...]
    held: int
    live: bool
    started_at: datetime
    last_seen_at: datetime
