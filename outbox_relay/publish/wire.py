"""AMQP's binary form of a message, made once and fast: byte for byte what py-amqp would send.

Most of the time of a publish goes into the content header: a Celery message has some twenty headers, nearly all of them
short texts, and py-amqp writes each with several calls. Messages of one form differ in few of these bytes, so the rest
is kept.
"""

from __future__ import annotations

from struct import Struct, error, pack
from typing import TYPE_CHECKING, Any, NamedTuple

from amqp import AMQPError, Message, spec
from amqp.serialization import dumps

from outbox_relay.publish.forms import Form, Hole

if TYPE_CHECKING:
    from outbox_relay.publish.envelope import Outgoing

MAX_SHORT = 255
FRAME_OVERHEAD = 8
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


class Prepared(NamedTuple):
    """A message in AMQP's form: the arguments of its ``basic.publish``, its content header, its body."""

    args: bytes
    header: bytes
    body: bytes


def prepare(message: Outgoing) -> Prepared:
    """Encode a message.

    Raises:
        UnsendableError: a name or property has more bytes or another type than AMQP allows.
    """
    try:
        args = publish_arguments(message.target.exchange, message.target.routing_key)
        return Prepared(args, encode_header(message), message.body)
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
    if message.form is not None:
        return _encode_form(message.form, message)
    start, rest = _around_table(message, message.properties)
    return start + encode_table(message.headers) + b"".join(rest)  # type: ignore[arg-type]  # there are no holes


def _around_table(message: Outgoing, properties: dict[str, Any]) -> tuple[bytes, list[bytes | Hole]]:
    """Encode what comes before the headers, and what comes after them."""
    flags = _ALWAYS
    rest: list[bytes | Hole] = []
    for name in _REST:
        value = properties.get(name)
        if value is None:
            continue
        flag, kind = _FLAGS[name]
        flags |= flag
        if type(value) is Hole:
            rest.append(value)
        elif kind == "s":
            rest.append(_short(value))
        else:
            rest.append(pack("B" if kind == "o" else ">Q", value))
    return pack(">H", flags) + _short(message.content_type) + _short(message.content_encoding), rest


class _Pieces(NamedTuple):
    """A content header in pieces: ``start``, the size of the table, then bytes and the text that follows them."""

    start: bytes
    size: int  # of the table, without the texts in it
    table: list[tuple[bytes, int]]
    between: bytes
    rest: list[tuple[int, bytes]]


def _encode_form(form: Form, message: Outgoing) -> bytes:
    pieces: _Pieces | None = form.encoded
    if pieces is None:
        pieces = form.encoded = _make_pieces(form, message)
    texts = message.texts
    size = pieces.size
    parts = [pieces.start, b""]
    for before, number in pieces.table:
        text = texts[number]
        length = len(text)
        size += length
        parts += (before, _size(length), text)
    parts[1] = _size(size)
    parts.append(pieces.between)
    for number, after in pieces.rest:
        text = texts[number]
        if len(text) > MAX_SHORT:
            raise UnsendableError(f"{text[:80]!r}… takes {len(text)} bytes, and AMQP allows {MAX_SHORT}")
        parts += (_OCTETS[len(text)], text, after)
    return b"".join(parts)


def _make_pieces(form: Form, message: Outgoing) -> _Pieces:
    """Encode what all messages of a form have in common; content type and encoding are a part of the form, too."""
    start, around = _around_table(message, form.properties)
    table: list[tuple[bytes, int]] = []
    before = b""
    size = 0
    for name, value in form.headers.items():
        if type(value) is Hole:
            table.append((before + _short(name) + b"S", value.number))
            size += len(table[-1][0]) + 4
            before = b""
        else:
            before += encode_table({name: value})[4:]
    between = before
    rest: list[tuple[int, bytes]] = []
    for part in around:
        if isinstance(part, Hole):
            rest.append((part.number, b""))
        elif rest:
            rest[-1] = (rest[-1][0], rest[-1][1] + part)
        else:
            between += part
    return _Pieces(start, size + len(before), table, between, rest)


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


_OCTETS = [bytes((number,)) for number in range(256)]


def _short(value: str) -> bytes:
    text = value.encode("utf-8", "surrogatepass")
    if len(text) > MAX_SHORT:
        raise UnsendableError(f"{value[:80]!r}… takes {len(text)} bytes, and AMQP allows {MAX_SHORT}")
    return _OCTETS[len(text)] + text


_frame = Struct(">BHI").pack  # type, channel, size
_content = Struct(">BHIHHQ").pack  # a content header's frame: its class, a weight that is always 0, and the body's size
_METHOD, _HEADER, _BODY = 1, 2, 3
_PUBLISH = pack(">HH", *spec.Basic.Publish)
_END = b"\xce"


class Frames:
    """Collects the frames of many messages, so that they leave with few writes."""

    def __init__(self, frame_max: int) -> None:
        self._room = frame_max - FRAME_OVERHEAD
        self._methods: dict[tuple[int, bytes], bytes] = {}
        self._parts: list[bytes] = []
        self.size = 0

    def add(self, channel_id: int, message: Prepared) -> None:
        args, header, body = message
        method = self._methods.get((channel_id, args)) or self._method(channel_id, args)
        length = len(body)
        content = _content(_HEADER, channel_id, len(header) + 12, spec.Basic.CLASS_ID, 0, length)
        parts = self._parts
        self.size += len(method) + len(content) + len(header) + length + FRAME_OVERHEAD + 1
        if not length:
            parts += (method, content, header, _END)
        elif length <= self._room:
            parts += (method, content, header, _END, _frame(_BODY, channel_id, length), body, _END)
        else:
            parts += (method, content, header, _END)
            for begin in range(0, length, self._room):
                part = body[begin : begin + self._room]
                parts += (_frame(_BODY, channel_id, len(part)), part, _END)

    def _method(self, channel_id: int, args: bytes) -> bytes:
        frame = _frame(_METHOD, channel_id, len(_PUBLISH) + len(args)) + _PUBLISH + args + _END
        if len(self._methods) >= MAX_KEYS:
            self._methods.clear()
        self._methods[channel_id, args] = frame
        return frame

    def take(self) -> bytes:
        """Return what has been collected, and begin anew."""
        data = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return data
