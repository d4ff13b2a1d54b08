"""Look at queues without touching what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from amqp import ChannelError
from kombu import Connection
from kombu.utils.json import loads

from outbox_relay.core.explain import QueueSight
from outbox_relay.core.settlement import HEADER, Delivery
from outbox_relay.errors import PublishError
from outbox_relay.publish.kombu_link import KombuLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

T = TypeVar("T")

IO_TIMEOUT = 5.0
PATIENCE = 2.0
NOT_FOUND = 404


class PeekError(PublishError):
    """The broker could not be asked."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What waits in a queue, and how many consume it; None where the transport does not know."""

    ready: int
    consumers: int | None


def look_at(source: Celery | Connection, queue: str) -> QueueSight:
    """Look once at a queue; a broker that cannot be asked is told of in what comes back."""
    depths = Depths(source)
    try:
        depth = depths.depth(queue)
    except PeekError as error:
        return QueueSight(trouble=str(error))
    finally:
        depths.close()
    return QueueSight(missing=True) if depth is None else QueueSight(ready=depth.ready, consumers=depth.consumers)


class Depths:
    """Asks a broker about its queues, over a connection of its own. One thread at a time."""

    def __init__(self, source: Celery | Connection) -> None:
        connection = source.clone() if isinstance(source, Connection) else source.connection_for_write()
        self._driver = str(connection.get_transport_cls().driver_type)
        options = {"redis": {"socket_timeout": IO_TIMEOUT, "socket_connect_timeout": IO_TIMEOUT}}
        self._link = KombuLink(connection, None, options.get(self._driver))

    def depth(self, queue: str) -> Depth | None:
        """Return the depth of a queue, or None where there is no such queue (RabbitMQ alone tells that).

        Raises:
            PeekError: the broker cannot be asked.
        """
        if self._driver == "amqp":
            return self._ask(lambda: self._declare_passively(queue))
        return self._ask(lambda: Depth(self._link.channel._size(queue), None))

    def head(self, queue: str) -> Delivery | None:
        """Return what the ``x-outbox`` header of the queue's oldest message says.

        None where the queue is empty, the message has no such header, messages of several priorities wait (then the
        next one need not be the oldest), or the transport cannot tell (see :attr:`sees_heads`).

        Raises:
            PeekError: the broker cannot be asked.
        """
        if not self.sees_heads:
            return None
        data: bytes | None = self._ask(lambda: self._read_head(queue))
        if data is None:
            return None
        try:
            return Delivery.parse(loads(data)["headers"].get(HEADER))
        except (ValueError, TypeError, LookupError, AttributeError):
            return None  # not a message of kombu's

    @property
    def sees_heads(self) -> bool:
        """Whether :meth:`head` can look at this transport's queues."""
        return self._driver in ("redis", "embedded")

    def close(self) -> None:
        self._link.close()

    def _ask(self, question: Callable[[], T]) -> T:
        link = self._link
        fresh = not link.connected
        try:
            link.open(PATIENCE)
            return question()
        except link.lost as error:
            link.lose(error)
            if fresh:
                raise PeekError(str(error)) from error
            return self._ask(question)  # the connection had died of old age
        except link.refused as error:
            raise PeekError(str(error)) from error

    def _declare_passively(self, queue: str) -> Depth | None:
        """On a channel of its own, since the broker closes it over a queue that is missing."""
        connection = self._link.channel.connection
        if connection is None:
            raise ConnectionResetError("the broker has closed the connection")
        connection.sock.settimeout(IO_TIMEOUT)
        channel = connection.channel()
        try:
            answer = channel.queue_declare(queue, passive=True)
            return Depth(answer.message_count, answer.consumer_count)
        except ChannelError as error:
            if error.reply_code == NOT_FOUND:
                return None
            raise
        finally:
            if channel.connection is not None:
                channel.close()

    def _read_head(self, queue: str) -> bytes | None:
        channel = self._link.channel
        if self._driver == "embedded":
            head: bytes | None = channel.folder.head(queue)
            return head
        prefix = channel.global_keyprefix  # kombu prefixes only the commands that it uses itself
        keys = [prefix + channel._q_for_pri(queue, priority) for priority in channel.priority_steps]
        with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.lindex(key, -1)
            heads: list[bytes] = [head for head in pipe.execute() if head is not None]
        return heads[0] if len(heads) == 1 else None
