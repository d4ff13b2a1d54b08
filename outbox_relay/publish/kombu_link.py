"""One connection of kombu's for publishing, whatever the transport, that is made anew when it dies."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kombu.exceptions import KombuError

from outbox_relay.publish.reconnect import Reconnecting, connect

if TYPE_CHECKING:
    from kombu import Connection, Queue

    from outbox_relay.events import Events


class KombuLink(Reconnecting):
    """A connection with its default channel, opened lazily in the process that uses it.

    ``refused`` are the errors that mean that the broker does not do what it was asked for.
    """

    def __init__(self, connection: Connection, events: Events | None, options: dict[str, Any] | None = None) -> None:
        super().__init__(connection, events)
        self._options = options or {}
        self._connection: Connection | None = None
        self._channel: Any = None
        self._pid = 0
        self._declared: set[tuple[str, str]] = set()
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
        if not self.connected:
            self._connection = None  # one that a parent process opened stays the parent's
            self._keep_connecting(patience)

    def _connect(self, patience: float) -> None:
        connection = self._clone(patience, {**self._options, **(self._template.transport_options or {})})
        try:
            connect(connection)
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
        if not self.connected and self.is_time_to_try:
            with suppress(*self.lost):  # told as an event; the next pulse tries again
                self.open(0)
