"""The embedded broker: a kombu transport over a folder, for development, demonstrations and single hosts.

``embedded:///relative/folder`` or ``embedded:////absolute/folder``. Unlike kombu's own ``filesystem://`` it loses
nothing to concurrent readers and writers, and the messages of a consumer that was killed come back by themselves.
"""

from __future__ import annotations

from functools import cached_property
from queue import Empty
from typing import Any, ClassVar, NamedTuple

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

from outbox_relay.publish.folder import Folder
from outbox_relay.publish.keeper import Keeper, Taken


class Bound(NamedTuple):
    """A binding, as kombu's exchange types read it."""

    routing_key: str
    pattern: str
    queue: str


class QoS(virtual.QoS):
    """Unacknowledged messages; each lies in the consumer's folder until it is acknowledged or given back."""

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.finish(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        super().reject(delivery_tag, requeue=requeue)
        self.channel.finish(delivery_tag)


class Channel(virtual.Channel):
    """A channel of the embedded broker."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._taken: dict[str, Taken] = {}
        self._no_ack: set[str] = set()

    @property
    def folder(self) -> Folder:
        folder: Folder = self.connection.folder
        return folder

    # -- messages -------------------------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if self.folder.expired(queue):
            self.folder.unbind_everywhere(queue)
            self.folder.remove(queue)
            return
        self.folder.put(queue, dumps(message).encode(), priority=self._get_message_priority(message))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for row in self.get_table(exchange):
            self._put(row.queue, message)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        taken = self.folder.take(queue, self.connection.keeper)
        if taken is None:
            raise Empty
        message: dict[str, Any] = loads(taken.data)
        if queue in self._no_ack:
            taken.finish()
        else:
            self._taken[message["properties"]["delivery_tag"]] = taken
        if taken.redelivered:
            message["properties"]["delivery_info"]["redelivered"] = True
        return message

    def finish(self, delivery_tag: str) -> None:
        """Be done with a message: it was acknowledged, or rejected for good."""
        if (taken := self._taken.pop(delivery_tag, None)) is not None:
            taken.finish()

    def _restore(self, message: virtual.Message) -> None:
        if (taken := self._taken.pop(message.delivery_tag, None)) is not None:
            self.folder.give_back(taken)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.finish(message.delivery_tag)
        return message

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> None:
        if no_ack:
            self._no_ack.add(queue)
        super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        self._no_ack.discard(self._tag_to_queue.get(consumer_tag, ""))
        super().basic_cancel(consumer_tag)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> Any:
        if self.connection.recover():
            for queue in self._active_queues:
                self.folder.consumed(queue)
        return super().drain_events(timeout=timeout, callback=callback)

    # -- queues ---------------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        expires = (kwargs.get("arguments") or {}).get("x-expires")
        self.folder.make(queue, expires=None if expires is None else expires / 1000)

    def _size(self, queue: str) -> int:
        return self.folder.size(queue)

    def _purge(self, queue: str) -> int:
        return self.folder.purge(queue)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        super().queue_delete(queue, if_unused=if_unused, if_empty=if_empty, **kwargs)
        self.folder.remove(queue)

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> None:
        self.folder.unbind(exchange, queue)

    # -- bindings -------------------------------------------------------------------------------------------------

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kw: Any) -> None:
        self.state.binding_delete(
            queue, exchange or "amq.direct", routing_key
        )  # others may have unbound it: write again
        super().queue_bind(queue, exchange, routing_key, *args, **kw)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        self.folder.bind(exchange, (routing_key or "", pattern or "", queue or ""))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kwargs: Any
    ) -> None:
        super().queue_unbind(queue, exchange, routing_key, *args, **kwargs)
        self.folder.unbind(exchange or "amq.direct", queue, routing_key=routing_key)

    def get_table(self, exchange: str) -> list[Bound]:
        return [Bound(*row) for row in self.folder.bindings(exchange)]


class Transport(virtual.Transport):
    """The embedded broker's transport."""

    Channel = Channel
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    global_state = virtual.BrokerState()
    driver_type = "embedded"
    driver_name = "embedded"
    polling_interval = 0.03
    default_connection_params: ClassVar[dict[str, Any]] = {}  # there is no host that kombu could miss in the URL

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.state = self.global_state

    @cached_property
    def folder(self) -> Folder:
        client: Any = self.client
        path = client.virtual_host
        if not path or path == "/":
            raise ValueError("embedded:// names no folder: write embedded:///relative/folder or embedded:////absolute")
        return Folder(path)

    @cached_property
    def keeper(self) -> Keeper:
        return Keeper(self.folder.root)

    def driver_version(self) -> str:
        return "N/A"

    def recover(self) -> bool:
        """Put back what dead consumers hold; tell whether it was time to look."""
        return self.keeper.recover() is not None

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self.keeper.close()
