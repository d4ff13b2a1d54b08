"""A stored message that cannot be read fails by itself; typed values keep their type."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from outbox_relay.errors import PublishError
from outbox_relay.publish.envelope import outgoing, report
from outbox_relay.publish.queues import own_queue
from tests.publish.bench import SETTLEMENTS, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def memory() -> Iterator[Bench]:
    bench = Bench("memory://")
    yield bench
    bench.close()


@pytest.mark.parametrize("stored", [b"", b"{", b"[]", b"null", b"\xff", b'{"__type__": "no-such", "__value__": 1}'])
@pytest.mark.parametrize("field", ["headers", "properties"])
def test_a_message_that_cannot_be_read_is_told(memory: Bench, field: str, stored: bytes) -> None:
    row = memory.row()
    broken = replace(row, message=replace(row.message, **{field: stored}))
    with pytest.raises(PublishError, match=field):
        outgoing(broken, memory.queues, settlement_queue=SETTLEMENTS)


def test_a_route_that_no_queue_has_is_told(memory: Bench) -> None:
    with pytest.raises(PublishError, match="namespace"):
        memory.out(namespace="no space")


def test_typed_values_in_headers_keep_their_type(memory: Bench) -> None:
    moment = datetime(2030, 1, 2, tzinfo=timezone.utc)
    assert memory.out(headers={"at": moment, "n": 1.5}).headers["at"] == moment


def test_two_deliveries_of_a_row_are_two_messages(memory: Bench) -> None:
    row = memory.row()
    again = replace(row, attempt=1)
    first, second = (outgoing(one, memory.queues, settlement_queue=SETTLEMENTS) for one in (row, again))
    assert first.identity != second.identity


def test_two_reports_are_two_messages() -> None:
    first, second = (report(1, own_queue("q"), b"", expiration=timedelta(seconds=1.5)) for _ in range(2))
    assert first.identity != second.identity
    assert first.properties["expiration"] == "1500"
