"""Producers that do not publish: one stands in for a connection, one records a message as it would have left."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu import Exchange, Producer
from kombu.compression import compress
from kombu.exceptions import EncodeError
from kombu.serialization import dumps

from outbox_relay.errors import StagingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery
    from kombu import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A task message as Celery finished it: serialised, routed, and past every ``before_task_publish`` receiver.

    ``plain`` is the body before compression, and ``content`` what was serialised. ``properties`` hold the priority too.
    ``queue`` is None where the sender named an exchange of its own. ``countdown`` is in seconds.
    """

    task: str
    task_id: str
    body: bytes
    plain: bytes
    content: Any
    serializer: str | None
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str
    queue: Queue | None
    countdown: float | None


class UnencodableError(StagingError, EncodeError):
    """The serializer cannot carry a value: kombu's own error too, for code that expects what a direct send raises."""


class Nowhere:
    """What a stand-in has for a connection. Questions about the broker go to a connection that is never opened."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.transport_options: dict[str, Any] = {}

    @contextmanager
    def _reraise_as_library_errors(self, *_: Any, **__: Any) -> Iterator[None]:
        yield  # Celery enters this around a send; what a sink raises must come through as it is

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        connection = self.__dict__.get("_connection")
        if connection is None:
            connection = self.__dict__["_connection"] = self._app.connection_for_write()
        return getattr(connection, name)


class StandIn(Producer):
    """Taken instead of a producer from the app's pool while nothing is to leave: no connection is acquired for it.

    A message that somebody publishes with it directly is no task: it goes out through a real producer.
    """

    exchange = Exchange("")
    auto_declare = False

    def __init__(self, app: Celery, acquire: Callable[[], Any]) -> None:
        # Not Producer.__init__: it binds a channel, and costs more than all the rest of a captured call.
        self._acquire = acquire
        self._nowhere = Nowhere(app)

    @property
    def connection(self) -> Nowhere:
        return self._nowhere

    @property
    def channel(self) -> Any:
        raise StagingError("inside a capture there is no channel: take a connection of your own, app.connection()")

    def __reduce__(self) -> Any:
        raise TypeError("a stand-in for a producer cannot be pickled")

    def revive(self, channel: Any) -> None:
        """Nothing to revive."""

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        with self._acquire() as producer:
            return producer.publish(body, *args, **options)


class Recorder(Producer):
    """Records one task message. Made anew for each, so that threads and nested sends cannot meet in it."""

    exchange = Exchange("")
    auto_declare = False

    def __init__(
        self,
        stand_in: StandIn,
        take: Callable[[Sent], None],
        *,
        task: str,
        task_id: str,
        queue: Queue | None,
        countdown: float | None,
    ) -> None:
        # Not Producer.__init__, for the reason given above.
        self._stand_in = stand_in
        self._take: Callable[[Sent], None] | None = take
        self._about = (task, task_id, queue, countdown)
        self._content: Any = None
        self._plain = b""
        self._serializer: str | None = None

    @property
    def connection(self) -> Nowhere:
        return self._stand_in.connection

    @property
    def channel(self) -> Any:
        return self._stand_in.channel

    def revive(self, channel: Any) -> None:
        """Nothing to revive."""

    def _prepare(  # noqa: PLR0917 - kombu's signature
        self,
        body: Any,
        serializer: str | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        compression: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> tuple[bytes, str, str]:
        """Do what kombu does, and keep the body as it was before compression."""
        self._content, self._serializer = body, serializer
        if content_type:
            encode: Callable[..., Any] = super()._prepare
            plain, content_type, content_encoding = encode(body, serializer, content_type, content_encoding)
        else:
            try:
                content_type, content_encoding, plain = dumps(body, serializer=serializer)
            except EncodeError as error:
                raise UnencodableError(
                    f"{self._about[0]}: {serializer} cannot carry these arguments: {error}"
                ) from error
        encoding = content_encoding or "utf-8"
        self._plain = plain.encode(encoding) if isinstance(plain, str) else bytes(plain)
        sent = self._plain
        if compression:
            sent, headers["compression"] = compress(sent, compression)  # type: ignore[index]  # publish() gives one
        return sent, str(content_type), encoding

    def _publish(  # noqa: PLR0917 - kombu's signature
        self,
        body: bytes,
        priority: int | None,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        exchange: str,
        *_: Any,
        **__: Any,
    ) -> None:
        take, self._take = self._take, None
        if take is None:
            return  # the task-sent event, which is about a message that has not been sent
        task, task_id, queue, countdown = self._about
        if priority is not None:
            properties["priority"] = priority
        take(
            Sent(
                task=task,
                task_id=task_id,
                body=body,
                plain=self._plain,
                content=self._content,
                serializer=self._serializer,
                content_type=content_type,
                content_encoding=content_encoding,
                headers=headers,
                properties=properties,
                exchange=exchange,
                routing_key=routing_key,
                queue=queue,
                countdown=countdown,
            )
        )


class Tee(Recorder):
    """Records one task message, and sends it on: the direct send is what it would have been without a record."""

    def __init__(self, producer: Any, stand_in: StandIn, take: Callable[[Sent], None], **about: Any) -> None:
        super().__init__(stand_in, take, **about)
        self._producer = producer

    @property
    def connection(self) -> Any:
        return self._producer.connection

    @property
    def channel(self) -> Any:
        return self._producer.channel

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        if self._take is not None:
            record: Callable[..., Any] = super().publish
            record(body, *args, **{**options, "retry": False})
        return self._producer.publish(body, *args, **options)
