"""Connecting to a broker: keep trying for a while, and tell of an outage once when it begins and once when it ends."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu.exceptions import KombuError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from outbox_relay.errors import PublishError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from kombu import Connection

    from outbox_relay.events import Events

CONNECT_TIMEOUT = 5.0
RETRY_INTERVAL = 1.0  # seconds between two looks for a broker that is away, while idle


class Reconnecting(ABC):
    """A connection that can be made anew. ``lost`` are the errors that mean that it is no good any more."""

    lost: tuple[type[Exception], ...]

    def __init__(self, connection: Connection, events: Events | None) -> None:
        self._template = connection
        self._events = events
        self._away = False
        self._tried_at = float("-inf")
        self.broker = connection.as_uri()

    @abstractmethod
    def _connect(self, patience: float) -> None:
        """Connect once.

        Raises:
            one of :attr:`lost`: it did not work.
        """

    def _keep_connecting(self, patience: float) -> None:
        """Connect; keep trying for about ``patience`` seconds.

        Raises:
            one of :attr:`lost`: the broker cannot be reached.
        """
        self._tried_at = time.monotonic()
        deadline = self._tried_at + patience
        attempts = Retrying(
            stop=stop_after_delay(patience),
            wait=wait_random_exponential(multiplier=0.1, max=1),
            retry=retry_if_exception_type(self.lost),
            reraise=True,
        )
        try:
            attempts(lambda: self._connect(max(deadline - time.monotonic(), 0.5)))
        except self.lost as error:
            self._note_lost(error)
            raise
        if self._away:
            self._away = False
            self.emit("broker.back")

    def _clone(self, patience: float, options: dict[str, Any], **changes: Any) -> Connection:
        """Return a copy of the connection with other transport options, not yet connected."""
        usual = self._template.connect_timeout or CONNECT_TIMEOUT
        connection: Connection = self._template.clone(connect_timeout=min(usual, patience), **changes)
        connection.transport_options = options
        return connection

    @property
    def is_time_to_try(self) -> bool:
        """Whether the last look for a broker that is away was long enough ago."""
        return time.monotonic() - self._tried_at >= RETRY_INTERVAL

    def emit(self, name: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.emit(name, broker=self.broker, **fields)

    def _note_lost(self, error: object) -> None:
        if not self._away:
            self._away = True
            self.emit("broker.lost", error=str(error) or repr(error))


def connect(connection: Connection) -> None:
    """Connect at once or raise: each host once (kombu itself would wait in between)."""
    hosts = max(len(connection.alt), 1)
    connection.ensure_connection(max_retries=hosts, interval_start=0, interval_step=0, interval_max=0)


@contextmanager
def errand(app: Celery) -> Iterator[Connection]:
    """A connection for one errand, such as a word to the workers: made at once or not at all.

    (One out of the app's pool would be waited for as long as the broker is away.)

    Raises:
        PublishError: the broker is away, or went away meanwhile.
    """
    connection = app.connection_for_write()
    connection.connect_timeout = min(connection.connect_timeout or CONNECT_TIMEOUT, CONNECT_TIMEOUT)
    try:
        connect(connection)
        yield connection
    except (*connection.connection_errors, *connection.channel_errors, KombuError, OSError) as error:
        raise PublishError(str(error) or repr(error)) from error
    finally:
        connection.collect()
