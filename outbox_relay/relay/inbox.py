"""What comes to a relay by the broker: settlements, beacons, markers, and beat's messages.

One connection and one channel for all of it. Nothing is acknowledged before it has been applied, so whatever goes wrong
on the way, the broker gives it again.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

from kombu import Consumer
from kombu.exceptions import KombuError

from outbox_relay.publish.publisher import driver_type
from outbox_relay.relay.outages import Outage

if TYPE_CHECKING:
    from datetime import timedelta

    from kombu import Connection, Message, Queue

    from outbox_relay.events import Events

LONGEST_HEARTBEAT = 10
SHORTEST_HEARTBEAT = 2
PREFETCH = 500
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)  # what kombu raises for a body that is no message
CLOSE_TIMEOUT = 1.0
QUIET = 0.05  # seconds without a message that end a batch
BUSY_QUIET = 0.1  # the same after a large message: a busy worker sends the next one soon
LARGE = 1_500  # bytes
WHOLE = 0.5  # seconds after its first message at which a batch ends anyway


def broker_heartbeat(heartbeat: timedelta) -> int:
    """Return the heartbeat, in seconds, of a relay's connection to the broker, from that of the workers' beacons."""
    return min(max(round(heartbeat.total_seconds()), SHORTEST_HEARTBEAT), LONGEST_HEARTBEAT)


def consumer_connection(
    connection: Connection, outbox_name: str, *, heartbeat: int, visible_after: float
) -> Connection:
    """Return ``connection`` made anew for a relay's consumer.

    A broken connection is noticed within a few heartbeats. On Redis, what a dead relay had in hand comes back after
    ``visible_after`` seconds; it is kept apart from what the shop's workers have, whose tasks may take hours.
    """
    options: dict[str, Any] = dict(connection.transport_options or {})
    kind = driver_type(connection)
    if kind == "amqp":
        options.update(read_timeout=2 * heartbeat)  # a broker that does not answer is as good as gone
    elif kind == "redis":
        options.update(
            visibility_timeout=visible_after,
            unacked_key=f"outbox.unacked.{outbox_name}",
            unacked_index_key=f"outbox.unacked_index.{outbox_name}",
            unacked_mutex_key=f"outbox.unacked_mutex.{outbox_name}",
            unacked_mutex_expire=max(int(visible_after), 1),
            unacked_restore_throttle=1,
        )
    made: Connection = connection.clone(heartbeat=heartbeat, transport_options=options)
    return made


class Inbox:
    """The consumer of a relay's queues. One thread at a time."""

    def __init__(
        self, connection: Connection, queues: list[Queue], events: Events, *, prefetch: int = PREFETCH
    ) -> None:
        self._connection = connection
        self._answers = driver_type(connection) == "amqp"
        self._queues = queues
        self._events = events
        self._prefetch = prefetch
        self._outage = Outage(events, "broker", broker=connection.as_uri())
        self._consumer: Consumer | None = None
        self._waiting: list[Message] = []
        self._heartbeat_at = 0.0
        self._sock: socket.socket | None = None
        # A wait on AMQP begins anew with every heartbeat of the server, which come twice in the time agreed upon: one
        # that were as long would never end, and send none of our own.
        self._patience = (connection.heartbeat or LONGEST_HEARTBEAT) / 4
        self.lost = (*connection.connection_errors, *connection.channel_errors, KombuError, OSError)

    @property
    def consuming(self) -> bool:
        return self._consumer is not None

    def open(self) -> float:
        """Connect where that is needed, and consume. Return 0, or how many seconds to wait before the next try."""
        try:
            if self._consumer is None:
                self._connect()
                channel = self._connection.channel()
                consumer = Consumer(channel, self._queues, on_message=self._waiting.append, accept=None)
                consumer.qos(prefetch_count=self._prefetch)
                consumer.consume()
                self._consumer = consumer
        except self.lost as error:
            self.close()
            return self._outage.goes_on(error)
        self._outage.is_over()
        return 0.0

    def _connect(self) -> None:
        if not self._connection.connected:
            hosts = max(len(self._connection.alt), 1)
            self._connection.ensure_connection(max_retries=hosts, interval_start=0, interval_step=0, timeout=3)
            self._sock = self._connection.connection.sock if self._answers else None

    def receive(self, wait: float, limit: int) -> list[Message]:
        """Return the next messages, at most about ``limit``: none where nothing comes within ``wait`` seconds.

        Raises:
            one of :attr:`lost`: the connection is gone, and with it every message that was not acknowledged.
        """
        self._beat()
        deadline = time.monotonic() + wait
        ends = None
        while len(self._waiting) < limit:
            now = time.monotonic()
            if self._waiting and ends is None:
                ends = now + WHOLE
            left = deadline - now if ends is None else min(self._quiet(), ends - now)
            if left <= 0:
                break
            count = len(self._waiting)
            try:
                self._drain(min(left, self._patience))
            except TimeoutError:
                if len(self._waiting) == count and ends is not None:
                    break
            self._beat()
        messages, self._waiting[:] = list(self._waiting), []
        return messages

    def _quiet(self) -> float:
        return BUSY_QUIET if len(self._waiting[-1].body) >= LARGE else QUIET

    def catch_up(self) -> None:
        """Return only when everything that the broker had sent before this call is in hand.

        Raises:
            one of :attr:`lost`: the connection is gone.
        """
        self._beat()
        if self._answers:
            assert self._consumer is not None
            assert self._consumer.channel is not None
            # what the broker sends on a channel stays in order: its answer comes after what was sent before
            self._consumer.channel.queue_declare(queue=self._queues[0].name, passive=True)
            return
        for _ in range(2):  # where messages are fetched, one may be on its way, and one be fetched now
            with contextlib.suppress(TimeoutError):
                self._drain(QUIET)

    def acknowledge(self, messages: list[Message]) -> None:
        for message in messages:
            message.ack()

    def pause(self) -> None:
        """Stop consuming; what is in hand goes back to the queue. The connection stays."""
        consumer, self._consumer = self._consumer, None
        self._waiting.clear()
        if consumer is not None and consumer.channel is not None:
            try:
                consumer.channel.close()
            except self.lost:
                self.close()

    def keep_alive(self) -> None:
        """Look after a connection that does not consume."""
        try:
            self._beat()
            if self._connection.connected:
                self._drain(0.01)
        except TimeoutError:
            pass
        except self.lost:
            self.close()

    def gone(self, error: object) -> float:
        """The connection broke. Return how many seconds to wait before :meth:`open`."""
        self.close()
        return self._outage.goes_on(error)

    def close(self) -> None:
        self._consumer = None
        self._waiting.clear()
        self._connection.release()

    def hang_up(self) -> None:
        """Close for good, in good order where the broker answers soon: what is in hand goes back to its queue."""
        if self._answers and self._connection.connected:
            with contextlib.suppress(*self.lost):
                self._connection.connection.sock.settimeout(CLOSE_TIMEOUT)
                self._connection.connection.close()
            self._connection.collect()
        self.close()

    def interrupt(self) -> None:
        """Let nobody wait for an answer of the broker any more: the connection is lost. From any thread."""
        if (sock := self._sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _drain(self, timeout: float) -> None:
        """Take what comes next. Where anybody can write to a queue, it may not even be a message: then it is gone."""
        try:
            self._connection.drain_events(timeout=timeout)
        except UNREADABLE as error:
            if isinstance(error, self.lost):
                raise
            self._events.emit("settle.set_aside", reason=f"it is not a message: {error!r}")

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._heartbeat_at and self._connection.connected:
            self._connection.heartbeat_check()
            self._heartbeat_at = now + self._patience
