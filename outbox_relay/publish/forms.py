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
    from collections.abc import Callable, Sequence

    from outbox_relay.core.row import Message

    Left = tuple[tuple[bytes, ...], tuple[bytes, ...]]
    Other = tuple[int, str, str, str | None]

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

    ``left`` is what :func:`cut` leaves of the two, ``other`` what else a message of this form has. ``encoded`` belongs
    to whoever encodes them.
    """

    __slots__ = ("encoded", "headers", "left", "other", "properties")

    def __init__(self, headers: dict[str, Any], properties: dict[str, Any], left: Left, other: Other) -> None:
        self.headers = headers
        self.properties = properties
        self.left = left
        self.other = other
        self.encoded: Any = None


class Forms:
    """The forms that are known. ``change`` makes of the stored headers and properties those that are sent.

    It is called with both, with what stands for the text of the message's identity, and with what else makes the form:
    the row's retries, content type, content encoding, and the message's life on the broker.
    """

    def __init__(self, change: Callable[[dict[str, Any], dict[str, Any], Any, Other], None]) -> None:
        self._change = change
        self._forms: dict[tuple[Left, Other], Form] = {}
        self._singles: set[tuple[Left, Other]] = set()  # what no form can be made of
        self._latest: dict[str, Form] = {}  # by task: most of its messages are of one form

    def __len__(self) -> int:
        return len(self._forms)

    def clear(self) -> None:
        self._forms.clear()
        self._singles.clear()
        self._latest.clear()

    def of(self, message: Message, other: Other) -> tuple[Form, list[bytes]] | None:
        """Return the form of a stored message and the texts that go into it, but for its identity, which is the last.

        None: its messages have to be read one by one.

        Raises:
            PublishError: it cannot be read.
        """
        texts: list[bytes] = []
        form = self._latest.get(message.task)
        if (
            form is not None
            and form.other == other
            and _fits(message.headers, form.left[0], texts)
            and _fits(message.properties, form.left[1], texts)
        ):
            return form, texts
        texts.clear()
        headers = cut(message.headers, HEADER_MARKS, texts)
        first = len(texts)
        properties = cut(message.properties, PROPERTY_MARKS, texts)
        if headers is None or properties is None:
            return None
        key = (headers, properties), other
        form = self._forms.get(key)
        if form is None:
            if key in self._singles:
                return None
            form = self._make(key, first, len(texts))
            if len(self._forms) + len(self._singles) >= MAX_FORMS:
                self.clear()
            if form is None:
                self._singles.add(key)
                return None
            self._forms[key] = form
        self._latest[message.task] = form
        return form, texts

    def _make(self, key: tuple[Left, Other], first: int, count: int) -> Form | None:
        """Read a form; ``first`` of its ``count`` texts are cut out of the headers."""
        left, other = key
        headers = _read("headers", left[0], 0, first)
        properties = _read("properties", left[1], first, count - first)
        if headers is None or properties is None:
            return None
        self._change(headers, properties, Hole(count), other)
        return Form(headers, properties, left, other)


def filled(fields: dict[str, Any], texts: Sequence[bytes]) -> dict[str, Any]:
    """Return fields with their own texts in place of the holes."""
    return {
        name: texts[value.number].decode("utf-8", "surrogatepass") if type(value) is Hole else value
        for name, value in fields.items()
    }


def cut(data: bytes, marks: tuple[bytes, ...], texts: list[bytes]) -> tuple[bytes, ...] | None:
    """Cut texts out of a JSON object and append them to ``texts``; return what is left, in pieces.

    Return None for data that :func:`outbox_relay.publish.fields.encode_fields` does not write.
    """
    if not data.isascii() or b"\\u0000" in data:  # which stands for a hole later
        return None
    find, at, left = data.find, 0, []
    for mark in marks:
        begin = find(mark, at)
        if begin < 0:
            continue
        begin += len(mark)
        left.append(data[at:begin])
        text, at = _text(data, begin)
        texts.append(text)
    left.append(data[at:])
    return tuple(left)


def _fits(data: bytes, left: tuple[bytes, ...], texts: list[bytes]) -> bool:
    """Whether a JSON object is what :func:`cut` has left of another, with texts of its own; append those."""
    find, starts, at = data.find, data.startswith, 0
    for piece in left[:-1]:
        if not starts(piece, at):
            return False
        at += len(piece)
        end = find(b'"', at)
        text = data[at:end]
        if b"\\" in text:
            text, end = _text(data, at)
        texts.append(text)
        at = end
    return data[at:] == left[-1] and data.isascii()


def _text(data: bytes, begin: int) -> tuple[bytes, int]:
    """Read the text that begins there, and where it ends."""
    end = data.find(b'"', begin)
    text = data[begin:end]
    if end >= 0 and b"\\" not in text:
        return text, end
    rest = _REST_OF_TEXT.match(data, begin)
    assert rest is not None
    try:
        read: str = json.loads(b'"' + rest[0] + b'"')
    except ValueError as error:
        raise PublishError(f"the stored message cannot be read: {error!r}") from error
    return read.encode("utf-8", "surrogatepass"), rest.end()


def _read(what: str, left: tuple[bytes, ...], first: int, count: int) -> dict[str, Any] | None:
    """Read what :func:`cut` has left of headers or properties; None where a text was cut out of something nested.

    The holes are numbered from ``first``; there are ``count`` of them.
    """
    numbers = range(first, first + count)
    stands_in = [b"\\u0000%d" % number for number in numbers]
    fields = load(what, b"".join(part for pair in zip(left, [*stands_in, b""], strict=True) for part in pair))
    holes = {f"\0{number}": Hole(number) for number in numbers}
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
