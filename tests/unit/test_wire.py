"""The header and the reports, as they travel: what is written is read back, and what is not ours is refused."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_relay.core.settlement import MAX_ERROR_BYTES, Delivery, Kind, Retried, Settlement, storable
from outbox_relay.core.wire import Reporter, WireError, decode_settlements, encode_settlements

TOKEN = UUID("0123456789abcdef0123456789abcdef")
REPORTER = Reporter(UUID(int=9), "celery@box-7")


def test_the_header_reads_as_documented() -> None:
    delivery = Delivery(7, 3, TOKEN, "outbox.settlements.a;b")
    assert delivery.header() == "1;7;3;0123456789abcdef0123456789abcdef;outbox.settlements.a;b"
    assert Delivery.parse(delivery.header()) == delivery


@pytest.mark.parametrize(
    "header",
    [
        None,
        7,
        b"1;7;3;0123456789abcdef0123456789abcdef;q",
        "",
        "1;7;3",
        "2;7;3;0123456789abcdef0123456789abcdef;q",
        "1;x;3;0123456789abcdef0123456789abcdef;q",
        "1;7;x;0123456789abcdef0123456789abcdef;q",
        "1;7;3;0123;q",
        "1;7;3;0123456789abcdef0123456789abcdef;",
    ],
)
def test_a_header_that_is_not_ours_is_left_alone(header: object) -> None:
    assert Delivery.parse(header) is None


texts = st.text(st.characters(codec=None), max_size=30)
binaries = st.none() | st.binary(max_size=30)
objects = st.none() | st.dictionaries(texts, texts, max_size=3).map(lambda one: json.dumps(one).encode())
retried = st.builds(
    Retried,
    delay=st.floats(0, 1e9),
    retries=st.integers(0, 10**6),
    body=binaries,
    content_type=st.none() | texts,
    content_encoding=st.none() | texts,
    headers=objects,
    properties=objects,
    task_queue=st.none() | texts,
    exchange=st.none() | texts,
    routing_key=st.none() | texts,
)
deliveries = st.builds(Delivery, st.integers(1, 2**63 - 1), st.integers(0, 2**31 - 1), st.uuids(), st.just(""))


@st.composite
def settlements(draw: st.DrawFn) -> Settlement:
    delivery, task_id, text = draw(deliveries), draw(texts), draw(texts)
    match draw(st.sampled_from(Kind)):
        case Kind.DONE:
            return Settlement.done(delivery, task_id, draw(st.none() | texts.map(storable)))
        case Kind.FAILED:
            return Settlement.failed(delivery, task_id, text)
        case Kind.AGAIN:
            return Settlement.again(delivery, task_id, text)
        case Kind.LOST:
            return Settlement.lost(delivery, task_id, text)
        case Kind.UNKNOWN:
            return Settlement.unknown(delivery, task_id, text)
        case Kind.RETRY:
            return Settlement.retry(delivery, task_id, draw(retried), draw(st.none() | texts))
        case Kind.RELEASED:
            return Settlement.released(delivery, task_id)
        case Kind.REQUEUED:
            return Settlement.requeued(delivery, task_id)
        case Kind.CANCELLED:
            return Settlement.cancelled(delivery, task_id, text)


@given(st.lists(settlements(), max_size=4))
def test_settlements_come_back_as_they_were_sent(batch: list[Settlement]) -> None:
    body = encode_settlements(REPORTER, batch)
    assert body.isascii()
    assert decode_settlements(body) == (REPORTER, batch)


ITEM = ["done", 7, 3, TOKEN.hex, "t"]
WORKER = [REPORTER.instance.hex, REPORTER.hostname]


def _document(**changes: object) -> bytes:
    return json.dumps({"v": 1, "worker": WORKER, "settlements": [ITEM], **changes}).encode()


def test_the_document_of_the_refusals_below_is_a_good_one() -> None:
    reporter, batch = decode_settlements(_document())
    assert reporter == REPORTER
    assert batch == [Settlement.done(Delivery(7, 3, TOKEN, ""), "t")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"[" * 100_000,
        _document(v=2),
        _document(worker=None),
        _document(worker=["x", "y"]),
        _document(worker=[7, "y"]),
        _document(settlements=None),
        _document(settlements=[[]]),
        _document(settlements=[None]),
        _document(settlements=[["odd", 7, 3, TOKEN.hex, "t"]]),
        _document(settlements=[["done", "7", 3, TOKEN.hex, "t"]]),
        _document(settlements=[["done", 7, None, TOKEN.hex, "t"]]),
        _document(settlements=[["done", 7, 3, "zz", "t"]]),
        _document(settlements=[["done", 7, float("inf"), TOKEN.hex, "t"]]),
        _document(settlements=[["retry", 7, 3, TOKEN.hex, "t", None, {"retries": float("inf"), "delay": 1}]]),
        _document(settlements=[["retry", 7, 3, TOKEN.hex, "t", None, {"retries": 1, "delay": 10**400}]]),
        _document(settlements=[["done", 7, 3, TOKEN.hex, 8]]),
        _document(settlements=[["failed", 7, 3, TOKEN.hex, "t", 8]]),
        _document(settlements=[["retry", 7, 3, TOKEN.hex, "t"]]),
        _document(settlements=[["retry", 7, 3, TOKEN.hex, "t", None, {"retries": 1}]]),
        _document(settlements=[["retry", 7, 3, TOKEN.hex, "t", None, {"retries": 1, "delay": "nan"}]]),
        _document(settlements=[["retry", 7, 3, TOKEN.hex, "t", None, {"retries": 1, "delay": 1, "body": "?"}]]),
        _document(settlements=[["retry", 7, 3, TOKEN.hex, "t", None, {"retries": 1, "delay": 1, "headers": "W10="}]]),
        _document(settlements=[["retry", 7, 3, TOKEN.hex, "t", None, {"retries": 1, "delay": 1, "headers": "eA=="}]]),
    ],
    ids=lambda body: repr(body[:90]),
)
def test_what_is_not_a_batch_of_settlements_is_one_error(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_settlements(body)


def test_an_error_that_arrives_unclean_is_made_storable() -> None:
    _, (settlement,) = decode_settlements(_document(settlements=[["failed", 7, 3, TOKEN.hex, "t", "a\x00\ud835"]]))
    assert settlement.error == "a\\x00\\ud835"


def test_short_clean_text_is_stored_as_it_is() -> None:
    assert storable("Fehler: größer 😀\n\ttail") == "Fehler: größer 😀\n\ttail"


def test_long_text_keeps_its_head_and_its_tail() -> None:
    text = storable("HEAD" + "x" * 50_000 + "TAIL")
    assert text.startswith("HEAD")
    assert text.endswith("TAIL")
    assert "\n...\n" in text
    assert len(text.encode()) == MAX_ERROR_BYTES


@given(st.text(st.characters(codec=None)), st.integers(20, 60))
def test_any_text_becomes_one_that_every_database_takes(text: str, limit: int) -> None:
    result = storable(text, limit)
    assert "\x00" not in result
    assert len(result.encode()) <= limit
