"""Headers and properties of a message, as a row stores them: kombu's JSON, ASCII."""

from __future__ import annotations

from typing import Any

from kombu.utils.json import JSONEncoder, loads

_ENCODER = JSONEncoder(separators=(",", ":"))
_PLAIN = frozenset({str, int, float, bool, type(None)})
_MARK = "__type__"  # kombu's JSON writes its own types as objects with this key


def encode_fields(fields: dict[str, Any]) -> bytes:
    """Write headers or properties.

    Raises:
        TypeError: a value that kombu's JSON has no form for.
    """
    return _ENCODER.encode(fields).encode()


def decode_fields(data: bytes) -> dict[str, Any]:
    """Read what :func:`encode_fields` wrote."""
    fields: dict[str, Any] = loads(data)
    return fields


def fields_fault(fields: dict[str, Any]) -> str | None:
    """Say which field would not come back as it is, or return None. Tuples count as lists: AMQP knows no tuples."""
    for name, value in fields.items():
        if type(value) in _PLAIN and type(name) is str:
            continue  # nearly every field, nearly every time
        if not isinstance(name, str):
            return f"{name!r}: a name must be a string"
        if not _survives(value):
            return f"{name} = {value!r}: it would not arrive as it is"
    return None


def _survives(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind in {list, tuple}:
        return all(map(_survives, value))
    if kind is dict:
        return _MARK not in value and all(type(key) is str and _survives(value[key]) for key in value)
    try:
        return bool(loads(_ENCODER.encode(value)) == value)
    except (TypeError, ValueError):
        return False
