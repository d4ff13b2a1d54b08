"""One connection to RabbitMQ for publishing, that notices what happens to it and is made anew when it dies."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

from amqp import AMQPError, ChannelError, spec
from kombu.exceptions import KombuError

from outbox_relay.publish.confirms import Confirms
from outbox_relay.publish.envelope import identity_of
from outbox_relay.publish.reconnect import Reconnecting, connect
from outbox_relay.publish.wire import Frames

if TYPE_CHECKING:
    from amqp import Channel
    from kombu import Connection, Queue

    from outbox_relay.events import Events

#: What connecting, reading or writing may raise where the network or the broker is at fault.
LOST = (OSError, AMQPError, KombuError)
IO_TIMEOUT = 5.0  # for one answer of the broker (a declare, opening a channel)
CLOSE_TIMEOUT = 2.0
STEP = 0.25  # how long a stuck write waits before it looks whether the broker has said something


class LinkLostError(Exception):
    """The connection is gone. ``code`` is the broker's reply code, where it closed the connection itself."""

    def __init__(self, reason: object) -> None:
        super().__init__(str(reason) or repr(reason))
        self.code: int = getattr(reason, "reply_code", 0) or 0


class NoLinkError(LinkLostError):
    """The broker cannot be reached."""


class ChannelLostError(Exception):
    """The broker closed the publishing channel; the connection lives. ``code`` is the broker's reply code."""

    def __init__(self, error: ChannelError) -> None:
        super().__init__(error.reply_text or str(error))
        self.code: int = error.reply_code or 0


class Link(Reconnecting):
    """A connection with one channel in confirm mode. Not for use by several threads at once.

    ``blocked``: the broker has said that it takes no messages at present.
    """

    lost = LOST

    def __init__(self, connection: Connection, events: Events | None, heartbeat: float) -> None:
        super().__init__(connection, events)
        self._heartbeat = heartbeat
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._frames: Frames | None = None
        self._pid = 0
        self.blocked = False
        self.confirms = Confirms()
        self.declared: set[tuple[str, str]] = set()

    @property
    def connected(self) -> bool:
        return self._channel is not None and self._pid == os.getpid()

    @property
    def frame_max(self) -> int:
        return int(self._amqp.frame_max)

    @property
    def _amqp(self) -> Any:
        """py-amqp's connection."""
        if self._channel is None:
            raise LinkLostError("not connected")
        if self._channel.connection is None:
            self.lose(gone := LinkLostError("the connection was closed"))
            raise gone
        return self._channel.connection

    # -- open and close -------------------------------------------------------------------------------------------

    def open(self, patience: float) -> None:
        """Connect, where there is no connection; keep trying for about ``patience`` seconds.

        Raises:
            NoLinkError: the broker cannot be reached.
        """
        if self.connected:
            return
        if self._channel is not None:
            self._forget()  # opened before a fork: the parent goes on using it
        try:
            self._keep_connecting(patience)
        except LOST as error:
            raise NoLinkError(error) from error

    def _connect(self, patience: float) -> None:
        options = self._options(self._template.transport_options or {})
        connection = self._clone(patience, options, heartbeat=self._heartbeat)
        if connection.transport_cls == "librabbitmq":
            connection.transport_cls = "pyamqp"  # librabbitmq knows no confirms
        self.blocked = False
        try:
            connect(connection)
            connection.connection.sock.settimeout(IO_TIMEOUT)
            self._connection, self._pid = connection, os.getpid()
            self._open_channel()
        except BaseException:
            connection.collect()
            self._connection = self._channel = None
            raise
        self._frames = Frames(self.frame_max)

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The user's transport options, and what publishing needs.

        py-amqp gives up a connection whose peer has not taken a byte for one second (TCP_USER_TIMEOUT). A broker out of
        memory takes none for as long as that lasts, so the bound goes: heartbeats tell a dead peer from a busy one.
        """
        settings = dict(given.get("socket_settings") or {})
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            settings.setdefault(socket.TCP_USER_TIMEOUT, 0)
        properties = {"connection_name": "outbox_relay publisher", **(given.get("client_properties") or {})}
        return {
            **given,
            "socket_settings": settings,
            "client_properties": properties,
            "confirm_publish": False,  # py-amqp's own way waits for each message, and takes any answer for its own
            "on_blocked": self._on_blocked,
            "on_unblocked": self._on_unblocked,
        }

    def _open_channel(self) -> None:
        assert self._connection is not None
        channel = self._connection.connection.channel()
        channel.confirm_select()
        self.confirms.abandon()
        channel.events["basic_ack"].add(self.confirms.acknowledged)
        channel.events["basic_nack"].add(self.confirms.refused)
        channel.events["basic_return"].add(self._on_return)
        self._channel = channel

    def lose(self, error: object) -> None:
        """Drop the connection, without a word to a peer that may not listen."""
        connection, self._connection, self._channel, self._frames = self._connection, None, None, None
        self.confirms.abandon()
        self.declared.clear()
        self.blocked = False
        if connection is not None:
            connection.collect()
        self._note_lost(error)

    def close(self) -> None:
        """Close the connection: in good order where the broker answers, and at once where it does not."""
        if not self.connected:
            self._forget()
            return
        connection, self._connection, self._channel, self._frames = self._connection, None, None, None
        self.confirms.abandon()
        self.declared.clear()
        assert connection is not None
        try:
            if not self.blocked:  # a broker that blocks does not read, and would not answer
                connection.connection.sock.settimeout(CLOSE_TIMEOUT)
                connection.connection.close()
        except LOST:
            pass  # it is being closed: how does not matter
        finally:
            connection.collect()
            self.blocked = False

    def _forget(self) -> None:
        """Drop what belongs to the parent process, without touching the socket that both share."""
        if self._connection is not None and self._channel is not None and self._channel.connection is not None:
            os.close(self._channel.connection.sock.detach())
        self._connection = self._channel = self._frames = None
        self.confirms = Confirms()
        self.declared = set()
        self.blocked = False

    # -- talk -----------------------------------------------------------------------------------------------------

    def flush(self, deadline: float) -> None:
        """Send the frames that :attr:`frames` has collected, and read meanwhile what the broker says.

        Raises:
            LinkLostError: the connection died, or took nothing more until ``deadline``; a frame may have been cut.
        """
        frames = self.frames
        data = memoryview(frames.take())
        try:
            sock = self._amqp.sock
            sock.settimeout(STEP)
            while data:
                try:
                    data = data[sock.send(data) :]
                except TimeoutError:
                    if time.monotonic() >= deadline:
                        raise
                    self.read(0)
            sock.settimeout(IO_TIMEOUT)
        except (*LOST, ChannelLostError) as error:
            self.lose(error)  # also for a lost channel: the stream is cut inside a frame
            raise LinkLostError(error) from error

    @property
    def frames(self) -> Frames:
        if self._frames is None:
            raise LinkLostError("not connected")
        return self._frames

    @property
    def channel_id(self) -> int:
        assert self._channel is not None
        return int(self._channel.channel_id)

    def read(self, timeout: float) -> bool:
        """Read one thing that the broker says, if it says one within ``timeout`` seconds; tell whether it did.

        Raises:
            LinkLostError: the connection died.
            ChannelLostError: the broker closed the channel; there is a new one already.
        """
        try:
            self._amqp.drain_events(timeout=timeout)
        except TimeoutError:
            return False
        except ChannelError as error:
            self._reopen_channel()
            raise ChannelLostError(error) from error
        except LOST as error:
            self.lose(error)
            raise LinkLostError(error) from error
        return True

    def beat(self) -> None:
        """Send a heartbeat when one is due.

        Raises:
            LinkLostError: the broker has not been heard of for two heartbeats, or the connection died.
        """
        try:
            self._amqp.heartbeat_tick()
        except LOST as error:
            self.lose(error)
            raise LinkLostError(error) from error

    def declare(self, queue: Queue) -> str | None:
        """Declare a queue (with its exchange and bindings) on a channel of its own; say why the broker refuses it.

        Raises:
            LinkLostError: the connection died.
            ChannelLostError: the broker closed the publishing channel.
        """
        try:
            channel = self._amqp.channel()
            try:
                queue(channel).declare()
            finally:
                if channel.connection is not None:
                    channel.close()
        except ChannelError as error:
            if error.method_sig == spec.Basic.Publish:  # not about the queue: the other channel was closed meanwhile
                self._reopen_channel()
                raise ChannelLostError(error) from error
            return error.reply_text or str(error)
        except LOST as error:
            self.lose(error)
            raise LinkLostError(error) from error
        return None

    def _reopen_channel(self) -> None:
        """Take a fresh channel: py-amqp revives a closed one, but not its confirms."""
        try:
            assert self._channel is not None
            self._channel.close()
            self.frames.take()
            self._open_channel()
        except LOST as error:
            self.lose(error)
            raise LinkLostError(error) from error

    # -- hear -----------------------------------------------------------------------------------------------------

    def _on_return(self, error: Any, exchange: str, routing_key: str, message: Any) -> None:
        self.confirms.returned(identity_of(message.headers or {}, message.properties), str(error))

    def _on_blocked(self, reason: str) -> None:
        self.blocked = True
        self.emit("broker.blocked", reason=reason)

    def _on_unblocked(self) -> None:
        self.blocked = False
        self.emit("broker.unblocked")
