"""Settlements on their way from a worker to a relay: a batch is one message, JSON in ASCII."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox_relay.core.settlement import VERSION, Delivery, Kind, Retried, Settlement, storable

if TYPE_CHECKING:
    from collections.abc import Sequence


class WireError(ValueError):
    """Bytes that are not a report of a worker in this version's form."""


MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Reporter:
    """The worker process that reports: one ``instance`` (a UUID) a process start."""

    instance: UUID
    hostname: str


def encode_settlements(reporter: Reporter, settlements: Sequence[Settlement]) -> bytes:
    """Write a batch of settlements as one message body (JSON, ASCII)."""
    items = [_encode(settlement) for settlement in settlements]
    document = {"v": VERSION, "worker": [reporter.instance.hex, reporter.hostname], "settlements": items}
    return json.dumps(document, separators=(",", ":")).encode()


def decode_settlements(body: bytes) -> tuple[Reporter, list[Settlement]]:
    """Read what :func:`encode_settlements` wrote.

    Raises:
        WireError: the bytes are something else, or from a version that this one does not know.
    """
    document = load_document(body)
    try:
        instance, hostname = document["worker"]
        settlements = [_decode(item) for item in document["settlements"]]
        return Reporter(UUID(hex=instance), str(hostname)), settlements
    except MALFORMED as error:
        raise WireError(f"not a batch of settlements: {error!r}") from error


def read_settlements(body: bytes) -> tuple[list[Settlement], list[tuple[bytes, str]]]:
    """Read a batch one by one: what is good in it, and each that is not (of a newer worker, say) with the reason.

    Fields that this version does not know are passed over.

    Raises:
        WireError: no batch at all.
    """
    document = load_document(body)
    items = document.get("settlements")
    if not isinstance(items, list):
        raise WireError("not a batch of settlements: it has none")
    good: list[Settlement] = []
    bad: list[tuple[bytes, str]] = []
    for item in items:
        try:
            good.append(_decode(item))
        except MALFORMED as error:
            bad.append((json.dumps(item).encode(), f"not a settlement: {error!r}"))
    return good, bad


def load_document(body: bytes) -> dict[str, Any]:
    """Read a JSON object of this wire version.

    Raises:
        WireError: it is not one.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise WireError("not a report of this version")
    return document


def _encode(settlement: Settlement) -> list[Any]:
    delivery = settlement.delivery
    item: list[Any] = [
        settlement.kind.value,
        delivery.row_id,
        delivery.attempt,
        delivery.token.hex,
        settlement.task_id,
    ]
    if settlement.error is not None or settlement.retried is not None:
        item.append(settlement.error)
    if settlement.retried is not None:
        item.append(_encode_retried(settlement.retried))
    return item


def _decode(item: list[Any]) -> Settlement:
    kind, row_id, attempt, token, task_id, *rest = item
    error = rest[0] if rest else None
    retried = _decode_retried(rest[1]) if len(rest) > 1 and rest[1] is not None else None
    if not isinstance(row_id, int) or not isinstance(task_id, str) or not (error is None or isinstance(error, str)):
        raise ValueError(f"a field of a wrong type in {item[:5]!r}")
    if Kind(kind) is Kind.RETRY and retried is None:
        raise ValueError("a retry without its message")
    error = None if error is None else storable(error)
    queue = ""  # the settlement arrived where its header pointed: the queue need not travel with each
    return Settlement(Kind(kind), Delivery(row_id, int(attempt), UUID(hex=token), queue), task_id, error, retried)


_BYTES = ("body", "headers", "properties")
_TEXTS = ("content_type", "content_encoding", "task_queue", "exchange", "routing_key")


def _encode_retried(retried: Retried) -> dict[str, Any]:
    item: dict[str, Any] = {"delay": retried.delay, "retries": retried.retries}
    for name in _BYTES:
        if (data := getattr(retried, name)) is not None:
            item[name] = base64.b64encode(data).decode()
    for name in _TEXTS:
        if (text := getattr(retried, name)) is not None:
            item[name] = text
    return item


def _decode_retried(item: dict[str, Any]) -> Retried:
    fields: dict[str, Any] = {name: base64.b64decode(item[name], validate=True) for name in _BYTES if name in item}
    fields.update({name: str(item[name]) for name in _TEXTS if name in item})
    for name in ("headers", "properties"):
        if name in fields and not isinstance(json.loads(fields[name]), dict):
            raise ValueError(f"{name} that are not a JSON object")
    delay = float(item["delay"])
    if math.isnan(delay):
        raise ValueError("a delay that is not a number")
    return Retried(delay=delay, retries=int(item["retries"]), **fields)
