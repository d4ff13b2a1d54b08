"""What is filled into a template: the arguments as JSON and as Celery represents them, and the blanks of an object."""

from __future__ import annotations

from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from celery.utils.saferepr import saferepr
from kombu.serialization import dumps, registry
from kombu.utils import json as kombu_json

from outbox_relay.publish.fields import encode_fields
from outbox_relay.staging.rows import NO_LINKS

if TYPE_CHECKING:
    from collections.abc import Callable

BLANK = "\x01"  # stands where a value is filled in; Celery writes no such character itself
WRITTEN_BLANK = encode_basestring_ascii(BLANK)
NONE = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
LINKS = NO_LINKS.decode()
_encode: Callable[[Any], str] = kombu_json.JSONEncoder().encode  # what kombu.utils.json.dumps makes anew each time


@dataclass(frozen=True, slots=True)
class Form:
    """A JSON object with blanks."""

    text: str
    """A format for ``%`` with the names of the blanks."""

    @classmethod
    def of(cls, fields: dict[str, Any], blanks: set[str]) -> Form:
        text = encode_fields({name: BLANK if name in blanks else value for name, value in fields.items()}).decode()
        pieces = text.replace("%", "%%").split(WRITTEN_BLANK)
        names = [f"%({name})s" for name in fields if name in blanks]
        return cls("".join(part for pair in zip(pieces, [*names, ""], strict=True) for part in pair))

    def filled(self, values: dict[str, str]) -> bytes:
        """Fill in values that are JSON already."""
        return (self.text % values).encode()


def json_body(args: Any, kwargs: Any, serializer: str | None) -> str | None:
    """Write the body of a message without links as the serializer does; None where it writes those differently.

    Raises:
        Exception: what the serializer, or a value, raises.
    """
    if serializer == "json" and _is_kombus():
        return _encode((args, kwargs))[:-1] + LINKS
    body = dumps((args, kwargs, NONE), serializer=serializer)[2]
    text = body if isinstance(body, str) else body.decode()
    return text if text.endswith(LINKS) else None


def _is_kombus() -> bool:
    """Whether kombu's own JSON stands behind the name: a shop may have registered another."""
    codec = registry._encoders.get("json")
    return codec is not None and codec.encoder is kombu_json.dumps


def represented(value: Any, size: Any, levels: Any) -> str:
    """What Celery's ``saferepr`` returns, a good deal faster for a few plain values."""
    if type(size) is int and type(levels) is int and levels > 1:
        kind = type(value)
        text = None
        if kind is tuple:
            inside = _plain_values(value)
            text = None if inside is None else f"({inside},)" if len(value) == 1 else f"({inside})"
        elif kind is list:
            inside = _plain_values(value)
            text = None if inside is None else f"[{inside}]"
        elif kind is dict:
            if not value:
                text = "{}"
            elif (inside := _plain_items(value)) is not None:
                text = f"{{{inside}}}"
        if text is not None and len(text) < size:  # nothing would be cut off
            return text
    shown: str = saferepr(value, size, levels)
    return shown


def _plain_values(values: tuple[Any, ...] | list[Any]) -> str | None:
    parts = []
    for value in values:
        kind = type(value)
        if kind is str:
            parts.append("'" + value.replace("'", "\\'") + "'")
        elif kind in _BY_STR:
            parts.append(str(value))
        else:
            return None
    return ", ".join(parts)


def _plain_items(items: dict[Any, Any]) -> str | None:
    inside = (_plain_values([*items]), _plain_values([*items.values()]))
    if None in inside:
        return None
    pairs = (f"{_plain_values((name,))}: {_plain_values((value,))}" for name, value in items.items())
    return ", ".join(pairs)


_BY_STR = frozenset({int, float, bool, type(None)})
