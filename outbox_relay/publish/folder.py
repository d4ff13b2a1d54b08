"""Message queues in a folder: what the embedded broker stores, and how processes share it without losing any of it.

One file a message, one folder a queue. A message appears by being renamed into its queue when it is whole, and is taken
by being renamed out of it, so that it has one taker. What a process has taken lies in a folder of its own, guarded by a
lock that the operating system lifts when the process ends, however it ends: whoever finds the lock free puts the
messages back. Nothing is synced to the disk: a message outlives every process, but not a power cut.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import time
from collections import deque
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from outbox_relay.publish.keeper import AGAIN, PARTS, QUEUES, TAKEN, Taken, folders, put_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_relay.publish.keeper import Keeper

EXCHANGES = "exchanges"
EXPIRES = ".expires"  # holds after how many seconds without a consumer a queue is no more
LOOK_AHEAD = 256  # names kept of one look into a queue
MTIME_GRAIN = 1.0  # seconds for which a folder's time of change is not trusted: two changes may share one time
STALE_PART = 3600.0

Binding = tuple[str, str, str]  # routing key, pattern, queue


class Folder:
    """A broker's folder. Safe for any number of processes, and for one thread at a time in each."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._parts = str(self.root / PARTS)
        self._make()
        _sweep_parts(self.root / PARTS)
        self._numbers = itertools.count()
        self._ahead: dict[str, deque[str]] = {}
        self._quiet: dict[str, int] = {}
        self._paths: dict[str, str] = {}

    def _make(self) -> None:
        for name in (QUEUES, TAKEN, PARTS, EXCHANGES):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    # -- put and take ---------------------------------------------------------------------------------------------

    def put(self, queue: str, data: bytes, *, priority: int = 0) -> None:
        """Add a message behind all of its priority; a higher one (0 to 9) goes first."""
        name = f"{9 - priority}-{time.time_ns():020d}-{next(self._numbers):08d}-{uuid4().hex}"
        part = f"{self._parts}/{name}"
        path = self._path(queue)
        try:
            _write(part, data)
            os.rename(part, f"{path}/{name}")
        except FileNotFoundError:  # the queue is new, or somebody has cleared the folder
            self._make()
            os.makedirs(path, exist_ok=True)
            _write(part, data)
            os.rename(part, f"{path}/{name}")

    def take(self, queue: str, keeper: Keeper) -> Taken | None:
        """Take the next message of a queue into ``keeper``'s hands, or return None where there is none."""
        ahead = self._ahead.get(queue)
        if not ahead:
            ahead = self._ahead[queue] = self._look(queue)
        path = self._path(queue)
        while ahead:
            name = ahead[0]
            held = keeper.place_for(os.path.basename(path), name)
            try:
                os.rename(f"{path}/{name}", held)
            except FileNotFoundError:
                if not keeper.check():
                    ahead.popleft()  # somebody else was faster
                continue
            ahead.popleft()
            with open(held, "rb") as file:
                return Taken(queue, held, file.read(), redelivered=name.endswith(AGAIN))
        return None

    def give_back(self, taken: Taken) -> None:
        """Put a message back to where it was in its queue."""
        put_back(self.root, taken.path)
        self._ahead.pop(taken.queue, None)

    def head(self, queue: str) -> bytes | None:
        """Return the next message of a queue and leave it there; None too where several priorities wait."""
        path = self._path(queue)
        names = _names(path, None)
        if len({name[0] for name in names}) == 1:
            with suppress(FileNotFoundError), open(f"{path}/{names[0]}", "rb") as file:
                return file.read()
        return None

    def size(self, queue: str) -> int:
        try:
            with os.scandir(self._path(queue)) as entries:
                return sum(1 for entry in entries if not entry.name.startswith("."))
        except FileNotFoundError:
            return 0

    def purge(self, queue: str) -> int:
        """Delete the messages of a queue, and return how many there were."""
        path, purged = self._path(queue), 0
        self._ahead.pop(queue, None)
        with suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)
                        purged += 1
        return purged

    def remove(self, queue: str) -> None:
        """Delete a queue with all that is in it."""
        self.purge(queue)
        path = self._path(queue)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(path, EXPIRES))
        with suppress(OSError):  # a message has come meanwhile: then the queue stays
            os.rmdir(path)

    # -- queues that nobody consumes any more ---------------------------------------------------------------------

    def make(self, queue: str, *, expires: float | None = None) -> None:
        """Make a queue; with ``expires`` it is given up after so many seconds without a consumer."""
        path = self._path(queue)
        os.makedirs(path, exist_ok=True)
        if expires is not None:
            Path(path, EXPIRES).write_text(str(expires), "ascii")

    def consumed(self, queue: str) -> None:
        """Note that a queue has a consumer now."""
        with suppress(FileNotFoundError):
            os.utime(os.path.join(self._path(queue), EXPIRES))

    def expired(self, queue: str) -> bool:
        """Whether a queue has been without a consumer for longer than it may."""
        mark = f"{self._path(queue)}/{EXPIRES}"
        try:
            age = time.time() - os.stat(mark).st_mtime
            return age > float(Path(mark).read_text("ascii"))
        except (FileNotFoundError, ValueError):
            return False

    # -- bindings -------------------------------------------------------------------------------------------------

    def bindings(self, exchange: str) -> list[Binding]:
        return self._read_bindings(safe_name(exchange))

    def bind(self, exchange: str, binding: Binding) -> None:
        name = safe_name(exchange)
        with self._locked_exchanges():
            known = self._read_bindings(name)
            if binding not in known:
                self._write_bindings(name, [*known, binding])

    def unbind(self, exchange: str, queue: str, *, routing_key: str | None = None) -> None:
        """Remove a queue's bindings to an exchange: the one with ``routing_key``, or all."""
        self._unbind(
            safe_name(exchange),
            lambda row: row[2] != queue or (routing_key is not None and row[0] != routing_key),
        )

    def unbind_everywhere(self, queue: str) -> None:
        for path in folders(self.root / EXCHANGES):
            if not (name := os.path.basename(path)).startswith("."):
                self._unbind(name, lambda row: row[2] != queue)

    def _unbind(self, name: str, keep: Callable[[Binding], bool]) -> None:
        with self._locked_exchanges():
            known = self._read_bindings(name)
            kept = [row for row in known if keep(row)]
            if kept != known:
                self._write_bindings(name, kept)

    def _read_bindings(self, name: str) -> list[Binding]:
        try:
            rows = json.loads((self.root / EXCHANGES / name).read_bytes())
        except FileNotFoundError:
            return []
        return [(key, pattern, queue) for key, pattern, queue in rows]

    def _write_bindings(self, name: str, rows: list[Binding]) -> None:
        part = self.root / PARTS / uuid4().hex
        part.write_text(json.dumps(rows))
        part.rename(self.root / EXCHANGES / name)

    @contextmanager
    def _locked_exchanges(self) -> Iterator[None]:
        with open(self.root / EXCHANGES / ".lock", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # -- look -----------------------------------------------------------------------------------------------------

    def _look(self, queue: str) -> deque[str]:
        """Look for messages. A queue that was empty is not read again until its folder has changed."""
        path = self._path(queue)
        try:
            changed = os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return deque()
        if self._quiet.get(queue) == changed:
            return deque()
        looked = time.time_ns()
        names = _names(path, LOOK_AHEAD)
        if not names and looked - changed > MTIME_GRAIN * 1e9:
            self._quiet[queue] = changed
        return deque(names)

    def _path(self, queue: str) -> str:
        if (path := self._paths.get(queue)) is None:
            path = self._paths[queue] = os.path.join(self.root, QUEUES, safe_name(queue))
        return path


def safe_name(name: str) -> str:
    """Make a file's name of any queue's or exchange's name: readable, and never too long or meaning another folder."""
    quoted = quote(name, safe="").replace(".", "%2E")
    if len(quoted) <= 150:
        return quoted or "%"
    return f"{quoted[:80]}%{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _names(path: str, most: int | None) -> list[str]:
    """Return the messages of a queue in their order, the first ``most`` of them."""
    try:
        with os.scandir(path) as entries:
            names = (entry.name for entry in entries if not entry.name.startswith("."))
            return sorted(names) if most is None else heapq.nsmallest(most, names)
    except FileNotFoundError:
        return []


def _write(path: str, data: bytes) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            written = file.write(data)
            while written < len(data):
                written += file.write(memoryview(data)[written:])
    except FileNotFoundError:
        raise
    except OSError:  # the disk is full
        with suppress(OSError):
            os.unlink(path)
        raise


def _sweep_parts(path: Path) -> None:
    """Delete what writers that died have left unfinished."""
    for part in folders(path):
        with suppress(OSError):
            if time.time() - os.stat(part).st_mtime > STALE_PART:
                os.unlink(part)
