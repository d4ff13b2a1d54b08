"""How many rows of a namespace one relay may claim: quotas, and a relay's part of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from outbox_relay.core.planning import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHARDS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?/(\d{1,9})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shards:
    """The rows that a relay owns: those whose id, modulo ``total``, is from ``first`` to ``last``."""

    first: int
    last: int
    total: int

    @classmethod
    def read(cls, text: str) -> Shards:
        """Read ``first-last/total``, such as ``0-15/64``, or ``first/total``, counted from 0.

        Raises:
            ValueError: it is something else.
        """
        if match := _SHARDS.match(text):
            first, total = int(match[1]), int(match[3])
            last = first if match[2] is None else int(match[2])
            if first <= last < total:
                return cls(first, last, total)
        raise ValueError("write 'all', or first-last/total counted from 0, such as '0-15/64'")

    @property
    def owned(self) -> int:
        return self.last - self.first + 1

    def part_of(self, quota: int) -> int:
        """This relay's part of a quota, rounded up, so that no relay is left with nothing."""
        return -(-quota * self.owned // self.total)


EVERYTHING = Shards(0, 0, 1)


def headroom(quota: int, claimed: int, shards: Shards = EVERYTHING) -> int:
    """How many rows more may be claimed. It counts claimed rows, never pending ones."""
    return max(shards.part_of(quota) - claimed, 0)


@dataclass(slots=True)
class Census:
    """How far back the count of claimed rows has to look.

    Each claim that ends leaves a dead entry in the index of claimed rows, which a count would read again and again: so
    it begins at the oldest claim that the last count has found, less the time that a claim may take to be committed:
    ``slack`` where nobody else could claim meanwhile, else ``patience``. A worker may bring an older claim back to
    life; until it is counted, after ``full_every`` seconds at most, its namespace may exceed its quota by it.
    """

    slack: timedelta = timedelta(seconds=1)
    patience: timedelta = timedelta(seconds=60)
    full_every: float = 5.0
    floor: datetime = ALWAYS
    _next_full: float | None = field(default=None)

    def begin(self, clock: float) -> datetime:
        """Return the instant from which to count; ``clock`` is the caller's monotonic one."""
        if self._next_full is None or clock >= self._next_full:
            self._next_full, self.floor = clock + self.full_every, ALWAYS
        return self.floor

    def counted(self, now: datetime, oldest: datetime | None, *, alone: bool) -> None:
        """A count at ``now`` found no older claim than ``oldest`` (None: none). ``alone``: nobody else could claim."""
        latest = now - (self.slack if alone else self.patience)
        self.floor = max(self.floor, latest if oldest is None else min(oldest, latest))


def wanted(due: Mapping[str, int], room: Mapping[str, int]) -> dict[str, int]:
    """Of namespaces with ``due`` rows, how many each may have: ``room`` knows those that have a quota."""
    return {name: min(rows, room.get(name, rows)) for name, rows in due.items()}
