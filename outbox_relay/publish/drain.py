"""Take messages out of a queue by hand: some for good, the others go back to where they were."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp import ChannelError
from kombu import Connection
from kombu.transport import virtual

from outbox_relay.core.settlement import HEADER, Delivery
from outbox_relay.errors import PublishError
from outbox_relay.publish.kombu_link import KombuLink
from outbox_relay.publish.publisher import driver_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

DRAINABLE = frozenset({"amqp", "redis", "embedded"})
HOLD = 20_000  # messages that are in hand at once
HOLD_BYTES = 64 * 1024 * 1024
IO_TIMEOUT = 5.0
PATIENCE = 2.0
NOT_FOUND = 404
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)  # what kombu raises for what is no message


class DrainError(PublishError):
    """The broker could not be asked. Whatever was taken and not acknowledged goes back to its queue by itself."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message in hand. ``delivery`` is None where it is no row's."""

    delivery: Delivery | None
    size: int
    message: Any


class Drain:
    """Empties one queue, as far as it is full at the start; over a connection of its own, in one thread.

    Nothing is lost whatever happens: what was not acknowledged is the queue's again as soon as the connection ends (on
    Redis, when this process died with it in hand: after the visibility timeout).
    """

    def __init__(self, source: Celery | Connection, queue: str) -> None:
        connection = source.clone() if isinstance(source, Connection) else source.connection_for_write()
        self.queue = queue
        self._driver = driver_type(connection)
        options = {"redis": {"socket_timeout": IO_TIMEOUT, "socket_connect_timeout": IO_TIMEOUT}}
        self._link = KombuLink(connection, None, options.get(self._driver))
        self._left = 0
        self._held: dict[Any, Taken] = {}  # by their delivery tags: taken, and not acknowledged
        self._bytes = 0

    @property
    def left(self) -> bool:
        """Whether more is to be taken: there was more at the start, and there is room for it."""
        return self._left > 0 and len(self._held) < HOLD and self._bytes < HOLD_BYTES

    def open(self) -> int:
        """Connect, and return how many messages wait: so many are taken, and no more.

        Raises:
            DrainError: the broker cannot be reached.
        """
        with self._asking():
            self._link.open(PATIENCE)
            if self._driver == "amqp":
                self._link.channel.connection.sock.settimeout(IO_TIMEOUT)
                self._left = self._count()
            else:
                self._left = int(self._link.channel._size(self.queue))
        return self._left

    def _count(self) -> int:
        """Also an answer that comes only when the broker is done with all that it was told before."""
        try:
            return int(self._link.channel.queue_declare(self.queue, passive=True).message_count)
        except ChannelError as error:
            if error.reply_code == NOT_FOUND:
                return 0
            raise

    def take(self, limit: int) -> list[Taken]:
        """Take the next messages in hand; none where those that were there at the start are through.

        Nor are there any more where too many are in hand already.

        Raises:
            DrainError: the connection is gone.
        """
        taken: list[Taken] = []
        with self._asking():
            while self.left and len(taken) < limit:
                self._left -= 1
                try:
                    message = self._link.channel.basic_get(self.queue)
                except UNREADABLE:
                    continue  # anybody can write to a queue; it is gone
                if message is None:
                    self._left = 0
                    break
                one = self._read(message)
                taken.append(one)
                self._held[one.message.delivery_tag] = one
                self._bytes += one.size
        return taken

    def _read(self, message: Any) -> Taken:
        read = getattr(self._link.channel, "message_to_python", None)
        message = message if read is None else read(message)
        headers = message.headers
        header = headers.get(HEADER) if isinstance(headers, dict) else None
        body = message.body
        return Taken(Delivery.parse(header), len(body) if isinstance(body, (bytes, str, memoryview)) else 0, message)

    def acknowledge(self, taken: Sequence[Taken]) -> None:
        """Take messages off the broker for good; returns when the broker has done so.

        Raises:
            DrainError: whether it has is not known.
        """
        with self._asking():
            for one in taken:
                one.message.ack()
            if self._driver == "amqp":
                self._count()
        for one in taken:
            del self._held[one.message.delivery_tag]
            self._bytes -= one.size

    def give_back(self) -> None:
        """Put what is in hand back to where it was, in its order, and close the connection."""
        held = list(self._held.values())
        self._forget()
        try:
            if self._driver != "amqp" and self._link.connected:
                with self._asking():
                    self._restore(held)
        finally:
            self._link.close()  # RabbitMQ puts back what a channel leaves unacknowledged

    def _restore(self, held: Sequence[Taken]) -> None:
        """Brokers that kombu makes a queue of: each message goes to the front, the last one first."""
        qos = self._link.channel.qos
        for one in reversed(held):
            if self._driver == "redis":
                tag = one.message.delivery_tag
                qos.restore_by_tag(tag)
                virtual.QoS.ack(qos, tag)  # else it is restored again at the end, out of the hands of who has it then
            else:
                one.message.requeue()

    def _forget(self) -> None:
        self._held, self._bytes, self._left = {}, 0, 0

    @contextmanager
    def _asking(self) -> Iterator[None]:
        link = self._link
        try:
            yield
        except (*link.lost, *link.refused) as error:
            link.close()
            self._forget()
            raise DrainError(str(error) or repr(error)) from error


def can_drain(source: Celery | Connection) -> bool:
    """Whether messages can be taken back from this kind of broker."""
    return driver_type(source if isinstance(source, Connection) else source.connection_for_write()) in DRAINABLE
