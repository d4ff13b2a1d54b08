"""Every value arrives as Celery would have brought it, or is refused before it is written; on all databases alike."""

from __future__ import annotations

import enum
import math
from collections import namedtuple
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from kombu import serialization
from kombu.compression import decompress
from kombu.exceptions import EncodeError

from outbox_relay import StagingError
from outbox_relay.publish.fields import decode_fields

if TYPE_CHECKING:
    from celery import Celery

    from tests.staging.shop import Shop


class Colour(str, enum.Enum):
    RED = "red"


class Plain(enum.Enum):
    ONE = 1


@dataclass
class Point:
    x: int


Pair = namedtuple("Pair", "a b")

SAME = object()
ANY = frozenset({"application/json", "application/x-python-serialize", "application/x-msgpack", "application/x-yaml"})
VALUES: dict[str, tuple[Any, Any, Any]] = {
    # value: what a worker is given under json, and under pickle; None: refused
    "date": (date(2026, 1, 2), SAME, SAME),
    "aware": (datetime(2026, 1, 2, tzinfo=timezone.utc), SAME, SAME),
    "naive": (datetime(2026, 1, 2), SAME, SAME),  # noqa: DTZ001
    "time": (time(3, 4), SAME, SAME),
    "uuid": (UUID(int=5), SAME, SAME),
    "decimal": (Decimal("1.10"), SAME, SAME),
    "inf": (math.inf, SAME, SAME),
    "minus inf": (-math.inf, SAME, SAME),
    "other zone": (datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45))), SAME, SAME),
    "microseconds": (datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc), SAME, SAME),
    "large decimal": (Decimal("1E+400"), SAME, SAME),
    "text bytes": (b"text", SAME, SAME),
    "flag": ("\N{REGIONAL INDICATOR SYMBOL LETTER D}\N{REGIONAL INDICATOR SYMBOL LETTER E}", SAME, SAME),
    "bytes": (b"\x00\xff", SAME, SAME),
    "NUL": ("a\x00b", SAME, SAME),
    "emoji": ("\N{PILE OF POO}", SAME, SAME),
    "lone surrogate": ("\ud835", SAME, SAME),
    "integer keys": ({1: "a"}, {"1": "a"}, SAME),
    "None key": ({None: 1}, {"null": 1}, SAME),
    "tuple keys": ({(1, 2): 3}, None, SAME),
    "large integer": (2**70, SAME, SAME),
    "str enum": (Colour.RED, "red", SAME),
    "enum": (Plain.ONE, None, SAME),
    "dataclass": (Point(1), None, SAME),
    "timedelta": (timedelta(1), None, SAME),
    "path": (Path("/tmp"), None, SAME),
    "set": ({1}, None, SAME),
    "namedtuple": (Pair(1, 2), [1, 2], SAME),
    "tuple": ((1, 2), [1, 2], SAME),
    "function": (lambda: None, None, None),
    "looks like a typed value": ({"__type__": "no such", "__value__": 1}, None, SAME),
}


def decoded(row: Any) -> Any:
    body = serialization.loads(row["body"], row["content_type"], row["content_encoding"], accept={row["content_type"]})
    return body[0][0]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_value_arrives_or_is_refused(shop: Shop, serializer: str) -> None:
    for kind, (value, by_json, by_pickle) in VALUES.items():
        expected = by_json if serializer == "json" else by_pickle
        with shop.maker() as session, session.begin():
            signature = shop.anything.s(value).set(serializer=serializer, task_id=kind)
            if expected is None:
                with pytest.raises(StagingError):
                    shop.outbox.stage(session, signature)
                continue
            shop.outbox.stage(session, signature)
    arrived = {row["task_id"]: decoded(row) for row in shop.rows()}
    column = 1 if serializer == "json" else 2
    assert set(arrived) == {kind for kind, of in VALUES.items() if of[column] is not None}
    for kind, value in arrived.items():
        expected = VALUES[kind][column]
        assert value == (VALUES[kind][0] if expected is SAME else expected), kind
        if expected is SAME:
            assert type(value) is type(VALUES[kind][0]), kind


NAN = {"nan": math.nan, "nan inside": {"a": [math.nan, -math.inf]}, "keys that meet": {1: "a", "1": "b"}}
REFUSED = object()


def sent_directly(app: Celery, task: Any, value: Any, serializer: str) -> Any:
    """What a worker would read after a direct send; REFUSED where it could not be sent, or not be read."""
    try:
        task.apply_async((value,), serializer=serializer)
    except Exception:  # noqa: BLE001 - whatever it is, the value does not get there
        return REFUSED
    with app.connection_for_read() as connection:
        message = app.amqp.queues["celery"](connection.default_channel).get(no_ack=True)
        try:
            body = serialization.loads(message.body, message.content_type, message.content_encoding, accept=ANY)
        except Exception:  # noqa: BLE001
            return REFUSED
    return body[0][0]


@pytest.mark.parametrize("serializer", ["json", "pickle", "msgpack", "yaml"])
def test_a_value_arrives_as_by_a_direct_send_or_is_refused(shop: Shop, serializer: str) -> None:
    shop.app.conf.broker_url = "memory://"  # of the whole process: other tests may have left messages there
    with shop.app.connection_for_read() as connection:
        queue = shop.app.amqp.queues["celery"](connection.default_channel)
        queue.declare()
        queue.purge()
    values = {**{kind: of[0] for kind, of in VALUES.items()}, **NAN}
    expected = {kind: sent_directly(shop.app, shop.anything, value, serializer) for kind, value in values.items()}
    for kind, value in values.items():
        with shop.maker() as session, session.begin():
            signature = shop.anything.s(value).set(serializer=serializer, task_id=kind)
            if expected[kind] is REFUSED:
                with pytest.raises(StagingError):
                    shop.outbox.stage(session, signature)
            else:
                shop.outbox.stage(session, signature)
    arrived = {row["task_id"]: decoded(row) for row in shop.rows()}
    assert {kind: repr(value) for kind, value in arrived.items()} == {
        kind: repr(value) for kind, value in expected.items() if value is not REFUSED
    }
    assert len(arrived) > 5


def test_a_value_that_is_refused_stops_neither_the_transaction_nor_a_bulk(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        for value in (object(), {(1, 2): 3}, {"__type__": "no such", "__value__": 1}):
            with pytest.raises(StagingError):
                shop.outbox.stage_many(session, [shop.anything.s(1), shop.anything.s(value)])
        shop.outbox.stage_many(
            session, [shop.anything.s("\ud835"), shop.anything.s("a\x00b"), shop.anything.s(math.nan)]
        )
    assert [repr(decoded(row)) for row in shop.rows()] == [repr("\ud835"), repr("a\x00b"), "nan"]


@pytest.mark.parametrize("serializer", ["pickle", "msgpack", "yaml"])
def test_bytes_are_stored_as_they_are(shop: Shop, serializer: str) -> None:
    every = bytes(range(256)) * 3
    with shop.maker() as session, session.begin():
        for compression in (None, "gzip", "zlib"):
            shop.outbox.stage(session, shop.anything.s(every).set(serializer=serializer, compression=compression))
    plain, *compressed = shop.rows()
    assert decoded(plain) == every
    for row in compressed:
        body = decompress(row["body"], decode_fields(row["headers"])["compression"])
        assert decoded({**row, "body": body}) == every


def test_not_a_number_arrives(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        shop.outbox.stage(session, shop.anything.s(math.nan))
    assert math.isnan(decoded(shop.row()))


def test_what_cannot_be_serialised_is_celerys_own_error_too(lite_shop: Shop) -> None:
    """Code that catches what a direct send raises goes on to work inside a capture."""
    with lite_shop.maker() as session, session.begin(), lite_shop.outbox.capture(session):
        with pytest.raises(EncodeError):
            lite_shop.anything.delay(object())
        with pytest.raises(StagingError):
            lite_shop.anything.delay(object())
    assert lite_shop.rows() == []


def test_a_serializer_that_a_worker_cannot_read_is_refused(lite_shop: Shop) -> None:
    def broken(_: Any) -> Any:
        raise ValueError("cannot read this")

    serialization.register("one-way", repr, broken, content_type="application/x-one-way", content_encoding="utf-8")
    try:
        with lite_shop.maker() as session, session.begin(), pytest.raises(StagingError, match="could not decode"):
            lite_shop.outbox.stage(session, lite_shop.anything.s(1).set(serializer="one-way"))
    finally:
        serialization.unregister("one-way")
    assert lite_shop.rows() == []
