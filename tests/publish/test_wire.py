"""The fast encoding is py-amqp's, byte for byte."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from amqp import Message
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as st
from kombu import Queue

from outbox_relay.publish.envelope import Outgoing
from outbox_relay.publish.queues import Target
from outbox_relay.publish.wire import Frames, Prepared, UnsendableError, encode_header, encode_table, prepare

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(), max_size=40)
    | st.floats(allow_nan=False)
    | st.binary(max_size=20)
    | st.just(Decimal("1.25"))
    | st.just(datetime(2030, 1, 1, tzinfo=timezone.utc))
)
keys = st.text(max_size=40)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4))
tables = st.dictionaries(keys, values, max_size=8)


@given(tables)
def test_a_table_of_headers_is_encoded_as_py_amqp_does(table: dict[str, Any]) -> None:
    assert encode_table(table) == dumps("F", (table,))


shorts = st.text(min_size=1, max_size=60)
octets = st.integers(0, 255)
properties = st.fixed_dictionaries(
    {},
    optional={
        "delivery_mode": octets,
        "priority": octets,
        "correlation_id": shorts,
        "reply_to": shorts,
        "expiration": shorts,
        "message_id": shorts,
        "timestamp": st.integers(0, 2**63),
        "type": shorts,
        "user_id": shorts,
        "app_id": shorts,
        "cluster_id": shorts,
    },
)


def message(headers: dict[str, Any], properties: dict[str, Any], **target: str) -> Outgoing:
    where = Target(Queue("q"), target.get("exchange", ""), target.get("routing_key", "q"))
    return Outgoing(1, where, b"body", "application/json", "utf-8", headers, properties)


@given(tables, properties)
def test_a_content_header_is_encoded_as_py_amqp_does(headers: dict[str, Any], properties: dict[str, Any]) -> None:
    theirs = Message(
        b"body",
        content_type="application/json",
        content_encoding="utf-8",
        application_headers=headers,
        **properties,
    )
    assert encode_header(message(headers, properties)) == theirs._serialize_properties()


class Sink:
    """A transport, as far as py-amqp's frame writer and connection know one."""

    frame_max = 131072
    bytes_sent = 0

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: memoryview) -> None:
        self.data += bytes(data)


@pytest.mark.parametrize("size", [0, 5, 131_064, 131_065, 300_000])
def test_messages_are_framed_as_py_amqp_does(size: int) -> None:
    body, headers = b"x" * size, {"a": "b"}
    frames, theirs = Frames(Sink.frame_max), Sink()
    content = Message(body, content_type="application/json", content_encoding="utf-8", application_headers=headers)
    write = frame_writer(theirs, theirs)
    for channel in (1, 1, 2):
        frames.add(channel, Prepared(b"args", encode_header(message(headers, {})), body))
        write(1, channel, (60, 40), b"args", content)
    assert frames.size == pytest.approx(len(theirs.data), abs=60)
    assert frames.take() == theirs.data
    assert frames.take() == b""


@pytest.mark.parametrize(
    ("target", "headers", "properties"),
    [
        ({"routing_key": "é" * 128}, {}, {}),
        ({"exchange": "x" * 256}, {}, {}),
        ({}, {"k" * 256: 1}, {}),
        ({}, {"a": 2**64}, {}),
        ({}, {"a": object()}, {}),
        ({}, {}, {"correlation_id": "é" * 128}),
        ({}, {}, {"correlation_id": 5}),
        ({}, {}, {"priority": "high"}),
        ({}, {}, {"delivery_mode": 256}),
    ],
)
def test_what_amqp_cannot_carry_is_told_before_anything_is_sent(
    target: dict[str, str], headers: dict[str, Any], properties: dict[str, Any]
) -> None:
    with pytest.raises(UnsendableError):
        prepare(message(headers, properties, **target))
