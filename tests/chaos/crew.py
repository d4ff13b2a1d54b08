"""The processes of the shop under chaos: whoever ends is replaced, and nobody may end by himself."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.flow.stand import Program, Shop

STOCK = ("Unrecoverable error", "Thread 'Supervisor' crashed")  # how Celery gives a worker up, with or without us
PATIENCE = 25.0  # seconds that a process may take to end in good order


@dataclass
class Post:
    """A place that is to be filled with a process at all times."""

    kind: str
    start: Callable[[], Program]
    program: Program
    vacant_at: float | None = None  # somebody took the process away; another one starts then
    told_at: float | None = None  # it was told to end


@dataclass
class Crew:
    """Two relays, two workers, one beat."""

    shop: Shop
    posts: list[Post] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # ends that are to be expected, and that a service manager mends
    slow: int = 0  # how many had to be killed after they had been told to end

    def hire(self, kind: str, start: Callable[[], Program]) -> None:
        self.posts.append(Post(kind, start, start()))

    def alive(self, kind: str) -> list[Program]:
        return [post.program for post in self.posts if post.kind == kind and self._works(post)]

    def _works(self, post: Post) -> bool:
        return post.vacant_at is None and not post.program.ended

    def gone(self, program: Program, *, after: float, told: bool = False) -> None:
        """A process is about to be taken away; another one takes its place ``after`` it has ended."""
        for post in self.posts:
            if post.program is program:
                post.vacant_at = time.monotonic() + after
                post.told_at = time.monotonic() if told else None

    def look(self) -> None:
        """Fill the places of those who have ended."""
        now = time.monotonic()
        for post in self.posts:
            program = post.program
            if not program.ended:
                if post.told_at is not None and now - post.told_at > PATIENCE:
                    self.slow += 1
                    self.notes.append(f"{program.name} did not end within {PATIENCE:g} s: {program.log}")
                    post.told_at = None
                    program.send(signal.SIGKILL)
                continue
            if post.vacant_at is None:
                told = f"{program.name} ended by itself with {program.code}: {program.log}"
                log = program.tail(200_000)
                stock = post.kind == "worker" and any(one in log for one in STOCK)
                stock |= post.kind == "relay" and "Error: the database is away" in log  # it started meanwhile
                (self.notes if stock else self.faults).append(told)
                post.vacant_at = now + 0.5
            elif now >= post.vacant_at:
                post.vacant_at = post.told_at = None
                post.program = post.start()

    def rss(self) -> dict[str, int]:
        """How many KiB each process has in memory."""
        sizes = {}
        for post in self.posts:
            if not post.program.ended:
                status = Path(f"/proc/{post.program.pid}/status").read_text().splitlines()
                sizes[post.program.name] = next(int(one.split()[1]) for one in status if one.startswith("VmRSS"))
        return sizes
