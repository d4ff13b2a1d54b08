"""Beacons: a worker's sign of life, and how it travels."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import UUID

from outbox_relay.core.settlement import MAX_DELAY, VERSION, storable
from outbox_relay.core.wire import WireError, load_document

MAX_ID = 2**63 - 1


class HeldState(str, Enum):
    """What a worker does with a row that it holds."""

    RESERVED = "reserved"  # received, not started; the broker has it until then
    RUNNING_LATE = "running_late"  # runs, and is acknowledged at its end
    RUNNING_EARLY = "running_early"  # runs, and the broker has it no more


@dataclass(frozen=True, slots=True)
class Held:
    """A delivery in a worker's hands; ``age`` is the seconds since it was received or, once it runs, since it began."""

    row_id: int
    token: UUID
    state: HeldState
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """What a worker says of itself to one outbox.

    ``instance`` is a UUID a process start, and ``age`` the seconds since then. ``namespaces`` are those that it is
    meant to serve, None for all; ``serves`` those whose queues it consumes now. ``queues`` is everything that it
    consumes. ``held`` are the outbox's rows in its hands: all of them, or, where ``partial``, only those that have
    newly started. ``leaving``: its last one; every task of it has ended, and all reports of them are with the broker.
    """

    instance: UUID
    hostname: str
    pool: str
    queues: tuple[str, ...]
    node: str | None = None
    namespaces: tuple[str, ...] | None = None
    serves: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    age: float = 0.0
    partial: bool = False
    leaving: bool = False


_CODES = {HeldState.RESERVED: 0, HeldState.RUNNING_LATE: 1, HeldState.RUNNING_EARLY: 2}
_STATES = {code: state for state, code in _CODES.items()}


def encode_beacon(beacon: Beacon) -> bytes:
    """Write a beacon as one message body (JSON, ASCII)."""
    document: dict[str, Any] = {
        "v": VERSION,
        "worker": [beacon.instance.hex, beacon.hostname],
        "beacon": {
            "pool": beacon.pool,
            "node": beacon.node,
            "namespaces": None if beacon.namespaces is None else list(beacon.namespaces),
            "serves": list(beacon.serves),
            "queues": list(beacon.queues),
            "age": round(beacon.age, 3),
            "partial": beacon.partial,
            "held": [[one.row_id, one.token.hex, _CODES[one.state], round(one.age, 3)] for one in beacon.held],
        },
    }
    if beacon.leaving:
        document["beacon"]["leaving"] = True
    return json.dumps(document, separators=(",", ":")).encode()


def decode_beacon(body: bytes) -> Beacon:
    """Read what :func:`encode_beacon` wrote; what comes back goes into every database.

    Raises:
        WireError: the bytes are something else, or from a version that this one does not know.
    """
    document = load_document(body)
    try:
        instance, hostname = document["worker"]
        beacon = document["beacon"]
        return Beacon(
            instance=UUID(hex=instance),
            hostname=_text(hostname),
            pool=_text(beacon["pool"]),
            node=None if beacon["node"] is None else _text(beacon["node"]),
            namespaces=None if beacon["namespaces"] is None else _texts(beacon["namespaces"]),
            serves=_texts(beacon["serves"]),
            queues=_texts(beacon["queues"]),
            held=tuple(_held(*item) for item in beacon["held"]),
            age=_age(beacon["age"]),
            partial=beacon["partial"] is True,
            leaving=beacon.get("leaving") is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WireError(f"not a beacon: {error!r}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return storable(value)


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list")
    return tuple(_text(value) for value in values)


def _age(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not an age")
    return min(max(float(value), 0.0), MAX_DELAY.total_seconds())


def _held(row_id: Any, token: Any, code: Any, age: Any) -> Held:
    if isinstance(row_id, bool) or not isinstance(row_id, int):
        raise TypeError(f"{row_id!r} is not a row id")
    if not -MAX_ID <= row_id <= MAX_ID:
        raise ValueError(f"{row_id} is too large for a row id")
    return Held(row_id, UUID(hex=token), _STATES[code], _age(age))
