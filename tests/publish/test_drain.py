"""Messages are taken out of a queue by hand, on every broker; what is not taken for good goes back in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kombu import Connection

from outbox_relay.publish.drain import Drain, DrainError, can_drain
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from outbox_relay.publish.drain import Taken
    from tests.publish.bench import Bench

QUEUE = "acme:work@box-7"


def fill(bench: Bench, count: int) -> list[int]:
    """Publish messages of rows, and return the rows' ids."""
    rows = [bench.out(namespace="acme", node="box-7") for _ in range(count)]
    bench.publish(rows)
    return [row.key for row in rows]


def ids(taken: list[Taken]) -> list[int]:
    return [one.delivery.row_id for one in taken if one.delivery is not None]


def test_what_is_acknowledged_is_gone_and_what_is_held_goes_back_in_its_order(bench: Bench) -> None:
    rows = fill(bench, 7)
    drain = Drain(bench.app, QUEUE)
    assert drain.open() == 7
    taken = drain.take(4) + drain.take(100)
    assert ids(taken) == rows
    drain.acknowledge(taken[1::2])
    assert not drain.left
    drain.give_back()
    assert bench.row_ids(QUEUE) == rows[0::2]


def test_no_more_is_taken_than_was_there_at_the_start(bench: Bench) -> None:
    rows = fill(bench, 2)
    drain = Drain(bench.app, QUEUE)
    assert drain.open() == 2
    later = fill(bench, 2)
    assert ids(drain.take(100)) == rows
    assert drain.take(100) == []
    drain.give_back()
    assert sorted(bench.row_ids(QUEUE)) == rows + later


def test_what_is_in_hand_when_the_connection_ends_is_the_queues_again(bench: Bench) -> None:
    rows = fill(bench, 3)
    drain = Drain(bench.app, QUEUE)
    drain.open()
    assert ids(drain.take(2)) == rows[:2]
    drain.give_back()
    assert bench.row_ids(QUEUE) == rows


def test_what_was_given_back_is_not_given_back_again_when_somebody_has_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the giving back and the end of the connection, a worker may take it."""
    rows = fill(bench, 3)
    drain = Drain(bench.app, QUEUE)
    drain.open()
    drain.take(3)
    close, hands = drain._link.close, []

    def close_late() -> None:
        hands.append(worker.basic_get(QUEUE))
        close()

    monkeypatch.setattr(drain._link, "close", close_late)
    worker = bench.connection.channel()
    drain.give_back()
    assert bench.row_ids(QUEUE) == rows[sum(message is not None for message in hands) :]


def test_there_is_nothing_to_take_from_a_queue_that_is_not_there(bench: Bench) -> None:
    drain = Drain(bench.app, "nowhere")
    assert drain.open() == 0
    assert drain.take(10) == []
    drain.give_back()


def test_messages_that_are_no_rows_are_told_apart(bench: Bench) -> None:
    with Connection(bench.url) as connection, connection.Producer() as producer:
        producer.publish({"plain": True}, routing_key="work", serializer="json", declare=[bench.queues.queue("work")])
    drain = Drain(bench.app, "work")
    assert drain.open() == 1
    (taken,) = drain.take(10)
    assert taken.delivery is None
    drain.give_back()
    (plain,) = bench.take()
    assert plain.payload == {"plain": True}


def test_acknowledging_over_a_connection_that_broke_is_an_error_and_the_queue_has_all_back(slow_lane: Bench) -> None:
    """The caller releases no row then: its message may run."""
    rows = fill(slow_lane, 3)
    drain = Drain(slow_lane.app, QUEUE)
    drain.open()
    taken = drain.take(3)
    assert slow_lane.proxy is not None
    slow_lane.proxy.cut()
    look = slow_lane.connection.default_channel
    eventually(lambda: look.queue_declare(QUEUE, passive=True).message_count == 3, 10)
    with pytest.raises(DrainError):
        drain.acknowledge(taken)
    drain.give_back()
    assert slow_lane.row_ids(QUEUE) == rows


def test_only_brokers_whose_messages_can_be_given_back_are_drained(bench: Bench) -> None:
    assert can_drain(bench.app)
    assert not can_drain(Connection("memory://"))
