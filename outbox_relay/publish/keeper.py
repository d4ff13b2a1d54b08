"""What a consumer of the embedded broker has taken, and how that comes back when its process dies."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pathlib import Path

QUEUES, TAKEN, PARTS = "queues", "taken", "parts"
LOCK = "lock"
AGAIN = ".again"  # ends the name of a message that has been taken before
RECOVER_EVERY = 1.0


class Taken:
    """A message that has been taken, and lies in its taker's folder."""

    __slots__ = ("data", "path", "queue", "redelivered")

    def __init__(self, queue: str, path: str, data: bytes, *, redelivered: bool) -> None:
        self.queue = queue
        self.path = path
        self.data = data
        self.redelivered = redelivered

    def finish(self) -> None:
        """Be done with the message. One that is no longer here was put back by somebody who thought us dead."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


class Keeper:
    """The folder of what one connection has taken, and the lock that says that its process lives."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._mutex = threading.Lock()
        self._path: str | None = None
        self._lock: int | None = None
        self._recovered_at = 0.0
        _keepers.add(self)

    def place_for(self, queue: str, name: str) -> str:
        """Return where to put a message that is being taken."""
        with self._mutex:
            if self._path is None:
                self._open()
            return f"{self._path}/{queue}!{name}"

    def _open(self) -> None:
        """Make the folder. It gets its name only when its lock is held, so that nobody takes it for a dead one's."""
        name = uuid4().hex
        part, path = self._root / PARTS / name, self._root / TAKEN / name
        part.mkdir()
        self._lock = os.open(part / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        part.rename(path)
        self._path = str(path)

    def check(self) -> bool:
        """Tell whether somebody has deleted the folder; then it is made anew at the next message."""
        if self._path is None or os.path.isdir(self._path):
            return False
        self.forget()
        return True

    def recover(self) -> int | None:
        """Put back what processes hold that have died, and return how many messages that were.

        It looks once in a while, and returns None in between.
        """
        now = time.monotonic()
        if now - self._recovered_at < RECOVER_EVERY:
            return None
        self._recovered_at = now
        return sum(_recover(self._root, path) for path in folders(self._root / TAKEN) if path != self._path)

    def close(self) -> None:
        """Put back what is still held, and give up the folder."""
        with self._mutex:
            path, lock, self._path, self._lock = self._path, self._lock, None, None
            if path is not None and lock is not None:
                _empty(self._root, path)
                os.close(lock)

    def forget(self) -> None:
        """Let go of folder and lock, without touching them: after a fork they are the parent's."""
        self._mutex = threading.Lock()
        lock, self._path, self._lock = self._lock, None, None
        if lock is not None:
            os.close(lock)


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _after_fork() -> None:
    for keeper in list(_keepers):
        keeper.forget()


os.register_at_fork(after_in_child=_after_fork)


def folders(path: str | Path) -> list[str]:
    """Return the paths of what is in a folder; nothing, where there is no such folder."""
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries]
    except FileNotFoundError:
        return []


def _recover(root: Path, path: str) -> int:
    """Put back what lies in a taker's folder, where the taker is dead."""
    try:
        lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0  # another process has just recovered it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # its taker lives
    else:
        return _empty(root, path)
    finally:
        os.close(lock)


def _empty(root: Path, path: str) -> int:
    """Put back all that lies in a taker's folder, and delete the folder. The caller holds its lock."""
    recovered = 0
    with suppress(FileNotFoundError):
        for held in folders(path):
            if not held.endswith("/" + LOCK):
                put_back(root, held)
                recovered += 1
        os.unlink(os.path.join(path, LOCK))
        os.rmdir(path)
    return recovered


def put_back(root: Path, held: str) -> None:
    """Put a message that was taken back to its place in its queue."""
    queue, _, name = os.path.basename(held).partition("!")
    if not name.endswith(AGAIN):
        name += AGAIN
    target = os.path.join(root, QUEUES, queue)
    with suppress(FileNotFoundError):  # it has been put back before, or is done
        os.makedirs(target, exist_ok=True)
        os.rename(held, os.path.join(target, name))
