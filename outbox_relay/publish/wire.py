"""AMQP's binary form of a message, made once and fast.

py-amqp frames the messages (:func:`amqp.method_framing.frame_writer`); only the content header is encoded here, since
that is where most of the time of a publish goes: a Celery message has some twenty headers, nearly all of them short
texts, and py-amqp writes each with several calls.
"""

from __future__ import annotations

from struct import Struct, error, pack
from typing import TYPE_CHECKING, Any

from amqp import AMQPError, Message, spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps

if TYPE_CHECKING:
    from amqp import Connection

    from outbox_relay.publish.envelope import Outgoing

MAX_SHORT = 255
HEADER_FRAME_OVERHEAD = 22  # 14 bytes of content header, 8 of frame

_FLAGS = {name: (1 << (15 - index), kind) for index, (name, kind) in enumerate(Message.PROPERTIES)}
_HEADERS, _TYPE, _ENCODING = (_FLAGS[name][0] for name in ("application_headers", "content_type", "content_encoding"))
_ALWAYS = _HEADERS | _TYPE | _ENCODING
_REST = tuple(name for name in _FLAGS if name not in ("application_headers", "content_type", "content_encoding"))

_long_text = Struct(">cI").pack
_integer = Struct(">ci").pack
_size = Struct(">I").pack

_keys: dict[str, bytes] = {}  # the encoded names of headers: the same few in every message
MAX_KEYS = 1_000


class UnsendableError(ValueError):
    """A message that AMQP cannot carry, or this broker will not take, however often it is tried."""


class Prepared:
    """A message in the form in which py-amqp's frame writer takes it.

    ``body`` and ``_serialize_properties`` are all that the writer asks of a content with a body of bytes. The latter
    is private to py-amqp: a test pins it.
    """

    __slots__ = ("args", "body", "header")

    def __init__(self, args: bytes, body: bytes, header: bytes) -> None:
        self.args = args
        self.body = body
        self.header = header

    def _serialize_properties(self) -> bytes:
        return self.header


def prepare(message: Outgoing) -> Prepared:
    """Encode a message.

    Raises:
        UnsendableError: a name or property has more bytes or another type than AMQP allows.
    """
    try:
        args = publish_arguments(message.target.exchange, message.target.routing_key)
        return Prepared(args, message.body, encode_header(message))
    except (AMQPError, error, ValueError, TypeError, OverflowError, AttributeError, RecursionError) as fault:
        raise UnsendableError(f"AMQP cannot carry it: {fault}") from fault


_arguments: dict[tuple[str, str], bytes] = {}


def publish_arguments(exchange: str, routing_key: str) -> bytes:
    """Encode the arguments of ``basic.publish``, with mandatory set: an unroutable message comes back."""
    if (known := _arguments.get((exchange, routing_key))) is not None:
        return known
    for what, name in (("exchange", exchange), ("routing key", routing_key)):
        if (size := len(name.encode("utf-8", "surrogatepass"))) > MAX_SHORT:
            raise UnsendableError(f"{what} {name!r} takes {size} bytes, and AMQP allows {MAX_SHORT}")
    encoded: bytes = dumps("Bssbb", (0, exchange, routing_key, True, False))
    if len(_arguments) >= MAX_KEYS:
        _arguments.clear()
    _arguments[exchange, routing_key] = encoded
    return encoded


def encode_header(message: Outgoing) -> bytes:
    """Encode content type, content encoding, headers and properties, as in AMQP's content header."""
    flags = _ALWAYS
    parts = [_short(message.content_type), _short(message.content_encoding), encode_table(message.headers)]
    properties = message.properties
    for name in _REST:
        value = properties.get(name)
        if value is None:
            continue
        flag, kind = _FLAGS[name]
        flags |= flag
        if kind == "s":
            parts.append(_short(value))
        else:
            parts.append(pack("B" if kind == "o" else ">Q", value))
    return pack(">H", flags) + b"".join(parts)


def encode_table(table: dict[str, Any]) -> bytes:
    """Encode a table of headers, byte for byte as py-amqp would, without its detours for what Celery's headers hold."""
    parts: list[bytes] = []
    add = parts.append
    for key, value in table.items():
        add(_keys.get(key) or _key(key))
        if type(value) is str:
            text = value.encode("utf-8", "surrogatepass")
            add(_long_text(b"S", len(text)))
            add(text)
        elif value is None:
            add(b"V")
        else:
            add(_value(value))
    data = b"".join(parts)
    return _size(len(data)) + data


def _value(value: Any) -> bytes:
    kind = type(value)
    if kind is bool:
        return b"t\x01" if value else b"t\x00"
    if kind is int and -0x7FFFFFFF <= value <= 0x7FFFFFFF:
        return _integer(b"I", value)
    if kind is dict:
        return b"F" + encode_table(value)
    if kind is list or kind is tuple:
        data = b"".join([b"V" if one is None else _value(one) for one in value])
        return b"A" + _size(len(data)) + data
    encoded: bytes = dumps("A", ((value,),))  # whatever else py-amqp can write, as the one element of an array
    return encoded[4:]


def _key(key: str) -> bytes:
    encoded = _short(key)
    if len(_keys) < MAX_KEYS:
        _keys[key] = encoded
    return encoded


def _short(value: str) -> bytes:
    text = value.encode("utf-8", "surrogatepass")
    if len(text) > MAX_SHORT:
        raise UnsendableError(f"{value[:80]!r}… takes {len(text)} bytes, and AMQP allows {MAX_SHORT}")
    return bytes((len(text),)) + text


class Frames:
    """Collects the frames of many messages, so that they leave with few writes."""

    def __init__(self, connection: Connection) -> None:
        self._frames: list[bytes] = []
        self.size = 0
        self._write = frame_writer(connection, self)

    def add(self, channel_id: int, message: Prepared) -> None:
        self._write(1, channel_id, spec.Basic.Publish, message.args, message)

    def write(self, data: memoryview | bytes) -> None:
        """Called by py-amqp's frame writer, in place of a transport's method of that name."""
        self._frames.append(bytes(data))
        self.size += len(data)

    def take(self) -> bytes:
        """Return what has been collected, and begin anew."""
        data = b"".join(self._frames)
        self._frames.clear()
        self.size = 0
        return data
