"""Messages of a form that is known are what they would be if each were read by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbox_relay.errors import PublishError
from outbox_relay.publish import envelope
from outbox_relay.publish.envelope import Outgoing, outgoing
from outbox_relay.publish.fields import decode_fields, encode_fields
from outbox_relay.publish.forms import MAX_FORMS
from outbox_relay.publish.wire import UnsendableError, encode_header, prepare
from tests.publish.bench import SETTLEMENTS, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

LIFE = timedelta(minutes=59)
HEADERS = {
    "lang": "py",
    "task": "shop.charge",
    "id": "a-1",
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "root_id": "a-1",
    "parent_id": None,
    "argsrepr": "(1,)",
    "kwargsrepr": "{}",
    "origin": "gen1@box",
    "stamped_headers": None,
    "stamps": {},
}
PROPERTIES = {"correlation_id": "a-1", "reply_to": "r-1", "delivery_mode": 2, "priority": 0}


@pytest.fixture(scope="module")
def memory() -> Iterator[Bench]:
    bench = Bench("memory://")
    yield bench
    bench.close()


def made(memory: Bench, headers: bytes, properties: bytes, **fields: Any) -> Outgoing:
    row = memory.row(**fields)
    row = replace(row, message=replace(row.message, headers=headers, properties=properties))
    return outgoing(row, memory.queues, settlement_queue=SETTLEMENTS, expiration=LIFE)


def one_by_one(message: Outgoing, headers: bytes, properties: bytes) -> Outgoing:
    """The message as it is when all of it is read anew."""
    changed = {"x-outbox": message.identity, "retries": message.headers["retries"], "eta": None}
    expiration = {"expiration": str(int(LIFE.total_seconds() * 1000))}
    return Outgoing(
        message.key,
        message.target,
        message.body,
        message.content_type,
        message.content_encoding,
        {**decode_fields(headers), **changed},
        {**decode_fields(properties), **expiration},
    )


names = st.sampled_from(["id", "eta", "expires", "group", "root_id", "parent_id", "argsrepr", "kwargsrepr", "stamps"])
texts = st.text(max_size=30) | st.sampled_from(
    ['"', "\\", '\\"', ',"id":"x"', '{"id":"', "\0", "\0" + "0", "é", "\ud800", "\n"]
)
values = st.recursive(
    st.none() | st.integers(-5, 5) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=3),
)
fields = st.dictionaries(names | texts, values, max_size=6)


@given(fields, st.dictionaries(st.sampled_from(["correlation_id", "reply_to"]), texts, max_size=2), st.integers(0, 3))
@example({**HEADERS, "argsrepr": "('a\"b', 'é')"}, {"reply_to": "r", "correlation_id": "c"}, 1)
@example({"stamps": {"a": 1, "id": "x"}, "a": "\0" + "0"}, {}, 0)
def test_what_is_kept_of_a_form_changes_no_message(
    memory: Bench, headers: dict[str, Any], properties: dict[str, Any], retries: int
) -> None:
    for extra in ({}, HEADERS):
        stored = encode_fields({**extra, **headers}), encode_fields({**PROPERTIES, **properties})
        for _ in range(2):
            message = made(memory, *stored, retries=retries)
            expected = one_by_one(message, *stored)
            assert message.headers == expected.headers
            assert message.properties == expected.properties
            try:
                header = encode_header(expected)
            except (ValueError, TypeError):
                with pytest.raises(UnsendableError):
                    prepare(message)
            else:
                assert prepare(message).header == header


def test_messages_that_differ_in_their_ids_and_arguments_alone_share_a_form(memory: Bench) -> None:
    envelope.forms.clear()
    for number in range(20):
        texts = {
            "id": f"a-{number}",
            "root_id": f"a-{number}",
            "argsrepr": f"({number}, '\\u00e9\"é')",
            "eta": f"{number}",
        }
        headers = encode_fields({**HEADERS, **texts})
        message = made(memory, headers, encode_fields({**PROPERTIES, "correlation_id": f"a-{number}"}))
        assert message.headers["argsrepr"] == texts["argsrepr"]
        assert message.properties["correlation_id"] == f"a-{number}"
    assert len(envelope.forms) == 1


def test_forms_are_not_kept_without_end(memory: Bench) -> None:
    for number in range(MAX_FORMS + 10):
        made(memory, encode_fields({"own": number}), encode_fields(PROPERTIES))
    assert len(envelope.forms) <= MAX_FORMS


@pytest.mark.parametrize(
    "stored", [b'{"a":1,"id":"x', b'{"a":1,"id":"x"', b'{"a":1,"id":"x\\"}', b'{"a":1,"id":"\\q"}']
)
def test_a_message_that_is_cut_off_cannot_be_read(memory: Bench, stored: bytes) -> None:
    for _ in range(2):
        with pytest.raises(PublishError, match="cannot be read"):
            made(memory, stored, encode_fields(PROPERTIES))
