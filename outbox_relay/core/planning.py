"""How the places of one sweep are shared between namespaces, and how far back a sweep has to look."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ALWAYS = datetime(1970, 1, 1, tzinfo=timezone.utc)


def share(due: Mapping[str, int], places: int) -> dict[str, int]:
    """Share ``places`` between namespaces with ``due`` rows (in the order of their turn): namespace → rows to take.

    Every namespace gets an equal part; what some leave over goes, in equal parts again, to those that still have rows.
    What cannot be divided goes, one place each, to the first ones: all of it where there are more namespaces than
    places. Who still has rows waiting has got at most one place less than anybody else.
    """
    taken: dict[str, int] = {}
    left = places
    while left > 0:
        open_ = [name for name, rows in due.items() if rows > taken.get(name, 0)]
        part = max(left // len(open_), 1) if open_ else 0
        if not part:
            break
        for name in open_[:left]:
            more = min(part, due[name] - taken.get(name, 0))
            taken[name] = taken.get(name, 0) + more
            left -= more
    return taken


@dataclass(slots=True)
class Watermark:
    """How far back a sweep looks for due rows.

    Every claim leaves a dead entry in the due index until the database cleans up, which an old snapshot can put off for
    hours; a sweep that looked from the start each time would read all of them again. So a sweep starts where the
    last one ended, less ``slack``. Rows can turn up below that line (a transaction that stays open for longer than
    ``slack``, another relay that let go of rows): therefore a **full look** from the start comes first, after
    :meth:`reset`, and then as often as it takes no more than ``duty`` of the time, but ``least`` seconds apart. That is
    every 5 s at least, unless dead entries make a single one take longer than 250 ms.

    ``clock`` values are seconds of the caller's monotonic clock; instants are the database's. One thread looks;
    :meth:`reset` may be called by any other at any moment, so it has a field of its own, which only a look clears.
    """

    slack: timedelta = timedelta(seconds=1)
    least: float = 0.25
    duty: float = 0.05
    floor: datetime = ALWAYS
    marks: dict[str, datetime] = field(default_factory=dict)
    _next_full: float = 0.0
    _wanted: bool = True

    def reset(self) -> None:
        """Make the next look a full one."""
        self._wanted = True

    def begin(self, clock: float) -> bool:
        """Start a look; true where it is a full one."""
        if not self._wanted and clock < self._next_full:
            return False
        self._wanted = False  # before the look: a reset that comes from now on is for the next one
        self._next_full = clock + self.least
        self.floor, self.marks = ALWAYS, {}
        return True

    def full_look_took(self, begun: float, ended: float) -> None:
        """A full look is over: plan the next one. A reset in the meantime stands."""
        self._next_full = begun + max(self.least, (ended - begun) / self.duty)

    def since(self, namespace: str) -> datetime:
        """Where to start looking for rows of ``namespace``."""
        return self.marks.get(namespace, self.floor)

    def looked(self, now: datetime, left: Mapping[str, datetime | None], *, everywhere: bool = True) -> None:
        """A look at ``now`` took what it found, but for the namespaces in ``left``, which have more.

        ``left`` gives the last instant up to which their rows were taken (None: nothing was). ``everywhere`` false says
        that not every namespace was looked at, so that nothing is known of the others.
        """
        marks = {}
        for name, taken_to in left.items():
            before = self.since(name)
            marks[name] = before if taken_to is None else max(before, taken_to - self.slack)
        if everywhere:
            self.floor, self.marks = max(self.floor, now - self.slack), marks
        else:
            self.marks.update(marks)
