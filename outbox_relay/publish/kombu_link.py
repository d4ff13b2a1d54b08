"""One connection of kombu's for publishing, whatever the transport, that is made anew when it dies."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kombu.exceptions import KombuError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

if TYPE_CHECKING:
    from kombu import Connection, Queue

    from outbox_relay.events import Events

IO_TIMEOUT = 10.0
RETRY_INTERVAL = 1.0  # seconds between two looks for a broker that is away, while idle


class KombuLink:
    """A connection with its default channel, opened lazily in the process that uses it.

    ``lost`` are the errors that mean that the connection is no good any more.
    """

    def __init__(self, connection: Connection, events: Events | None, options: dict[str, Any] | None = None) -> None:
        self._template = connection
        self._options = options or {}
        self._events = events
        self._connection: Connection | None = None
        self._channel: Any = None
        self._pid = 0
        self._away = False
        self._tried_at = float("-inf")
        self._declared: set[tuple[str, str]] = set()
        self.broker = connection.as_uri()
        transport = connection.get_transport_cls()
        self.lost = (*transport.connection_errors, KombuError, OSError)
        self.refused = transport.channel_errors

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._pid == os.getpid()

    @property
    def channel(self) -> Any:
        """The one channel. kombu's own ``default_channel`` would connect again, and wait for that without end."""
        assert self._channel is not None
        return self._channel

    def open(self, patience: float) -> None:
        """Connect, where there is no connection; keep trying for about ``patience`` seconds.

        Raises:
            one of :attr:`lost`: the broker cannot be reached.
        """
        if self.connected:
            return
        self._connection = None  # one that a parent process opened stays the parent's
        attempts = Retrying(
            stop=stop_after_delay(patience),
            wait=wait_random_exponential(multiplier=0.1, max=1),
            retry=retry_if_exception_type(self.lost),
            reraise=True,
        )
        try:
            attempts(self._connect, time.monotonic() + patience)
        except self.lost as error:
            self._note_lost(error)
            raise
        if self._away:
            self._away = False
            self.emit("broker.back")

    def _connect(self, deadline: float) -> None:
        connection = self._template.clone()
        connection.transport_options = {**self._options, **(connection.transport_options or {})}
        patience = max(deadline - time.monotonic(), 0.5)
        connection.connect_timeout = min(connection.connect_timeout or IO_TIMEOUT, patience)
        hosts = max(len(connection.alt), 1)
        try:
            connection.ensure_connection(max_retries=hosts, interval_start=0, interval_step=0, interval_max=0)
            channel = connection.default_channel
        except BaseException:
            connection.collect()
            raise
        self._connection, self._channel, self._pid = connection, channel, os.getpid()
        self._declared.clear()

    def declare(self, queue: Queue, exchange: str, *, again: bool = False) -> None:
        """Declare a queue, once a connection."""
        key = (exchange, queue.name)
        if again or key not in self._declared:
            queue(self.channel).declare()
            self._declared.add(key)

    def lose(self, error: object) -> None:
        """Drop the connection after an error."""
        self.close()
        self._note_lost(error)

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None and self._pid == os.getpid():
            with suppress(*self.lost, *self.refused):  # it is being closed: how does not matter
                connection.release()

    def pulse(self) -> None:
        """Connect again, where the connection is gone; not more often than each second."""
        now = time.monotonic()
        if not self.connected and now - self._tried_at >= RETRY_INTERVAL:
            self._tried_at = now
            with suppress(*self.lost):  # told as an event; the next pulse tries again
                self.open(0)

    def emit(self, name: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.emit(name, broker=self.broker, **fields)

    def _note_lost(self, error: object) -> None:
        if not self._away:
            self._away = True
            self.emit("broker.lost", error=str(error) or repr(error))
