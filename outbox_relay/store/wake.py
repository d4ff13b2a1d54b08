"""How a relay learns that there is something to do before its next poll.

Whatever wakes is advisory: a wake that is lost costs a poll interval, never a row.
"""

from __future__ import annotations

import hashlib
import select
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import tenacity

from outbox_relay.store.sql import POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.events import Events
    from outbox_relay.store.schema import Tables

WINDOW = 0.05
LOOK_EVERY = 0.05
JOIN = 2.0  # seconds; a connection that is being made may take longer, and its thread does not keep a process
PROBE_EVERY = 30.0


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


def listen(url: str, tables: Tables, on_wake: Callable[[], None], events: Events) -> Waker:
    """Call ``on_wake``, from a thread of its own, whenever something may have been committed; stop it in the end."""
    parsed = sa.make_url(url)
    waker: Waker
    if parsed.get_backend_name() == POSTGRESQL:
        waker = Listener(parsed, channel_name(tables), on_wake, events)
    else:
        waker = FileWatch(parsed, on_wake, events)
    waker.start()
    return waker


class Waker:
    """A thread that wakes; it looks for what it watches again and again when that is away."""

    def __init__(self, on_wake: Callable[[], None], events: Events) -> None:
        self._on_wake = on_wake
        self._events = events
        self._stopped = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._run, name="outbox-wake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop waking, and wait for the thread, but not for a database that is silent; harmless when called again."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._interrupt()
        self._thread.join(JOIN)

    def _run(self) -> None:
        retrying = tenacity.Retrying(
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
            sleep=tenacity.sleep_using_event(self._stopped),
            stop=tenacity.stop_when_event_set(self._stopped),
            retry=tenacity.retry_if_exception_type(self._errors()),
            before_sleep=self._say_lost,
        )
        while not self._stopped.is_set():
            with suppress(tenacity.RetryError):
                retrying(self._watch)

    def _say_lost(self, state: tenacity.RetryCallState) -> None:
        if not self._lost:  # one line an outage, not one a try
            self._lost = True
            error = None if state.outcome is None else state.outcome.exception()
            self._events.emit("wake.lost", error=str(error).strip().partition("\n")[0])

    def _watching(self) -> None:
        """What is watched can be watched now; something may have happened in the meantime."""
        if self._lost:
            self._lost = False
            self._events.emit("wake.back")
        self._on_wake()

    def _errors(self) -> tuple[type[Exception], ...]:
        """What says that the thing that is watched is away."""
        raise NotImplementedError

    def _watch(self) -> None:
        """Watch and wake until the thing that is watched goes away, or the thread is stopped."""
        raise NotImplementedError

    def _interrupt(self) -> None:
        """End a wait within :meth:`_watch`."""


class Listener(Waker):
    """Hears PostgreSQL's notifications on a connection of its own."""

    def __init__(self, url: sa.URL, channel: str, on_wake: Callable[[], None], events: Events) -> None:
        super().__init__(on_wake, events)
        self._url = url
        self._channel = channel
        self._here, self._there = socket.socketpair()

    def stop(self) -> None:
        super().stop()
        if not self._thread.is_alive():
            self._here.close()
            self._there.close()

    def _errors(self) -> tuple[type[Exception], ...]:
        import psycopg  # noqa: PLC0415 - for PostgreSQL only

        return (psycopg.Error, OSError)

    def _watch(self) -> None:
        with closing(self._connect()) as connection:
            connection.execute(f'LISTEN "{self._channel}"')
            self._watching()
            while not self._stopped.is_set():
                ready, _, _ = select.select([connection.fileno(), self._there], [], [], PROBE_EVERY)
                if self._there in ready:
                    return
                if not ready:
                    connection.execute("SELECT 1")  # a peer that is gone without a word is found out
                connection.pgconn.consume_input()
                heard = False
                while connection.pgconn.notifies() is not None:
                    heard = True
                if heard:
                    self._on_wake()

    def _connect(self) -> Any:
        import psycopg  # noqa: PLC0415 - for PostgreSQL only

        url = self._url.set(drivername="postgresql+psycopg")
        arguments, options = url.get_dialect()().create_connect_args(url)
        options = {"connect_timeout": 10, "application_name": "outbox listener", **options}
        return psycopg.connect(*arguments, autocommit=True, **options)

    def _interrupt(self) -> None:
        self._here.send(b"!")


class FileWatch(Waker):
    """Looks, cheaply and often, whether another connection has committed to a SQLite file."""

    def __init__(self, url: sa.URL, on_wake: Callable[[], None], events: Events) -> None:
        super().__init__(on_wake, events)
        self._path = url.database or ""

    def _errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    def _watch(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            before = self._version(connection)
            self._watching()
            while not self._stopped.wait(LOOK_EVERY):
                version = self._version(connection)
                if version != before:
                    before = version
                    self._on_wake()

    @staticmethod
    def _version(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA data_version").fetchone()[0])
