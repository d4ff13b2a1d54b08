"""Stored headers and properties, read once a form instead of once a message.

The messages of a task differ in few texts: its id, its root and parent, how its arguments look. What is left when these
are cut out of the stored JSON is the same in thousands of messages; it is read once, and whoever encodes a message
(:mod:`outbox_relay.publish.wire`) keeps with it the bytes that never change.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kombu.utils.json import loads as load_typed

from outbox_relay.errors import PublishError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FORMS = 1_000
#: Where texts that differ begin, in the order in which Celery writes them. A quote that is not escaped opens or closes
#: a string, so these bytes are nothing but the names of fields, wherever they stand.
HEADER_MARKS = tuple(
    f',"{name}":"'.encode()
    for name in ("id", "eta", "expires", "group", "root_id", "parent_id", "argsrepr", "kwargsrepr")
)
PROPERTY_MARKS = (b'{"correlation_id":"', b',"reply_to":"')
_REST_OF_TEXT = re.compile(rb'(?:[^"\\]|\\.)*', re.DOTALL)


class Hole:
    """Stands in a form's fields for the text of that number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Form:
    """Headers and properties that many messages share; a :class:`Hole` stands for each text that is a message's own.

    ``encoded`` belongs to whoever encodes messages of this form.
    """

    __slots__ = ("encoded", "headers", "properties")

    def __init__(self, headers: dict[str, Any], properties: dict[str, Any]) -> None:
        self.headers = headers
        self.properties = properties
        self.encoded: Any = None


def filled(fields: dict[str, Any], texts: Sequence[bytes]) -> dict[str, Any]:
    """Return fields with their own texts in place of the holes."""
    return {
        name: texts[value.number].decode("utf-8", "surrogatepass") if type(value) is Hole else value
        for name, value in fields.items()
    }


def cut(data: bytes, marks: tuple[bytes, ...], texts: list[bytes]) -> bytes | None:
    """Cut texts out of a JSON object and append them to ``texts``; return what is left, NUL where each one was.

    Return None for data that :func:`outbox_relay.publish.fields.encode_fields` does not write.
    """
    if not data.isascii() or b"\0" in data or b"\\u0000" in data:
        return None
    find, at, left = data.find, 0, []
    for mark in marks:
        begin = find(mark, at)
        if begin < 0:
            continue
        begin += len(mark)
        end = find(b'"', begin)
        text = data[begin:end]
        if end < 0 or b"\\" in text:
            end, text = _escaped(data, begin)
        left.append(data[at:begin])
        texts.append(text)
        at = end
    left.append(data[at:])
    return b"\0".join(left)


def _escaped(data: bytes, begin: int) -> tuple[int, bytes]:
    rest = _REST_OF_TEXT.match(data, begin)
    assert rest is not None
    try:
        text: str = json.loads(b'"' + rest[0] + b'"')
    except ValueError as error:
        raise PublishError(f"the stored message cannot be read: {error!r}") from error
    return rest.end(), text.encode("utf-8", "surrogatepass")


def read(what: str, left: bytes, first: int, count: int) -> dict[str, Any] | None:
    """Read what :func:`cut` has left of headers or properties; None where a text was cut out of something nested.

    The holes are numbered from ``first``; there are ``count`` of them.

    Raises:
        PublishError: it is no JSON object.
    """
    pieces = left.split(b"\0")
    names = [f"\0{number}" for number in range(first, first + count)]
    quoted = [b"\\u0000%d" % number for number in range(first, first + count)]
    whole = b"".join(part for pair in zip(pieces, [*quoted, b""], strict=True) for part in pair)
    fields = load(what, whole)
    holes = {name: Hole(number) for number, name in enumerate(names, first)}
    found = 0
    for name, value in fields.items():
        if type(value) is str and value in holes:
            fields[name] = holes[value]
            found += 1
    return fields if found == count else None


def load(what: str, data: bytes) -> dict[str, Any]:
    """Read a stored JSON object; kombu's own reader, many times slower, only where there is a typed value in it.

    Raises:
        PublishError: it is none.
    """
    try:
        value = load_typed(data) if b'"__type__"' in data else json.loads(data.decode())
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise PublishError(f"the {what} of the message cannot be read: {error!r}") from error
    if not isinstance(value, dict):
        raise PublishError(f"the {what} of the message are a {type(value).__name__}, not an object")
    return value
