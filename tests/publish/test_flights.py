"""Messages of a second call leave before those of the first are confirmed, and none is lost or sent twice over it."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Exchange, Queue

from outbox_relay.publish.confirms import LARGE, RabbitFlight
from outbox_relay.publish.publisher import Outcome
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_relay.publish.envelope import Outgoing
    from tests.publish.bench import Bench
    from tests.support.servers import RabbitMQ

CONFIRMED = Outcome.CONFIRMED


def fly(bench: Bench, *batches: Sequence[Outgoing], timeout: float = 20.0) -> list[list[Outcome]]:
    """Begin with each batch before the one before it is finished, as a relay does."""
    outcomes, before = [], None
    for batch in batches:
        flight = bench.publisher.begin(batch, timeout=timeout)
        if before is not None:
            outcomes.append([receipt.outcome for receipt in bench.publisher.finish(before)])
        before = flight
    assert before is not None
    return [*outcomes, [receipt.outcome for receipt in bench.publisher.finish(before)]]


def test_batches_that_overlap_are_confirmed_each_by_itself_and_stay_in_order(bench: Bench) -> None:
    batches = [bench.outs(20) for _ in range(5)]
    assert fly(bench, *batches) == [[CONFIRMED] * 20] * 5
    assert bench.row_ids() == [message.key for batch in batches for message in batch]


def test_a_batch_leaves_before_the_one_before_it_is_confirmed(rabbit: Bench) -> None:
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    first, second = (rabbit.publisher.begin(rabbit.outs(50), timeout=20) for _ in range(2))
    assert isinstance(first, RabbitFlight)
    assert isinstance(second, RabbitFlight)
    assert first.has_left
    assert second.has_left
    for flight in (first, second):
        assert [receipt.outcome for receipt in rabbit.publisher.finish(flight)] == [CONFIRMED] * 50
    assert len(rabbit.row_ids()) == 101


def test_a_connection_that_begins_with_several_batches_catches_up(rabbit: Bench) -> None:
    """Nothing is sent ahead before the broker has confirmed something; from then on everything is."""
    first, second = (rabbit.publisher.begin(rabbit.outs(10), timeout=20) for _ in range(2))
    assert isinstance(first, RabbitFlight)
    assert isinstance(second, RabbitFlight)
    assert not first.has_left
    rabbit.publisher.finish(first)
    third = rabbit.publisher.begin(rabbit.outs(10), timeout=20)
    assert isinstance(third, RabbitFlight)
    assert second.has_left
    assert third.has_left
    for flight in (second, third):
        rabbit.publisher.finish(flight)
    assert rabbit.row_ids() == list(range(1, 31))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_missing_queue_is_made_while_other_batches_are_in_flight(rabbit: Bench, at: int) -> None:
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    batches = [rabbit.outs(10, "new" if at == number else "work") for number in range(3)]
    assert fly(rabbit, *batches) == [[CONFIRMED] * 10] * 3
    assert (len(rabbit.row_ids()), len(rabbit.row_ids("new"))) == (21, 10)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_closes_the_channel_does_so_under_its_own_batch_alone(rabbit: Bench, at: int) -> None:
    """A message through an exchange that is not there, and one that travels alone for its size."""
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    batches = [rabbit.outs(10) for _ in range(3)]
    bad = rabbit.out(exchange="nowhere", routing_key="x")
    large = rabbit.out(body=b"x" * LARGE)
    batches[at][5:5] = [bad, large]
    expected: list[Any] = [[CONFIRMED] * 10 for _ in range(3)]
    expected[at][5:5] = [Outcome.UNROUTABLE, CONFIRMED]
    assert fly(rabbit, *batches) == expected
    sent = [message.key for batch in batches for message in batch if message is not bad]
    assert sorted(rabbit.row_ids()[1:]) == sorted(sent)


def test_an_exchange_that_is_deleted_while_batches_are_in_flight_is_made_again(rabbit: Bench) -> None:
    rabbit.app.conf.task_queues = [Queue("video", Exchange("media", type="topic"), "video.#")]

    def some() -> list[Outgoing]:
        return [rabbit.out("video", exchange="media", routing_key="video.a") for _ in range(5)]

    assert rabbit.publish(some()) == [CONFIRMED] * 5
    with rabbit.connection.channel() as channel:
        channel.exchange_delete("media")
    assert fly(rabbit, some(), some(), some()) == [[CONFIRMED] * 5] * 3
    assert set(rabbit.row_ids("video")) == set(range(1, 21))


def test_a_flight_that_is_finished_late_counts_what_was_confirmed_in_time(rabbit: Bench) -> None:
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    begun = monotonic()
    flight = rabbit.publisher.begin(rabbit.outs(5), timeout=0.2)
    with rabbit.connection.channel() as channel:
        eventually(
            lambda: channel.queue_declare("work", passive=True).message_count == 6 and monotonic() - begun > 0.3, 10
        )
    assert [receipt.outcome for receipt in rabbit.publisher.finish(flight)] == [CONFIRMED] * 5


def test_a_connection_that_is_cut_under_two_batches_loses_neither(slow_lane: Bench) -> None:
    assert slow_lane.proxy is not None
    assert slow_lane.publish(slow_lane.outs(1)) == [CONFIRMED]
    batches = [slow_lane.outs(50) for _ in range(2)]
    flights = [slow_lane.publisher.begin(batch, timeout=20) for batch in batches]
    slow_lane.proxy.cut()
    for flight in flights:
        assert [receipt.outcome for receipt in slow_lane.publisher.finish(flight)] == [CONFIRMED] * 50
    assert set(slow_lane.row_ids()) == set(range(1, 102))


@pytest.mark.owns_server
def test_what_an_earlier_call_left_in_doubt_is_not_sent_ahead_once_more(rabbitmq: RabbitMQ, rabbit: Bench) -> None:
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    batch = rabbit.outs(20)
    rabbitmq.pause()
    try:
        assert rabbit.publish(batch, timeout=0.5) == [Outcome.UNKNOWN] * 20
        again = rabbit.publisher.begin(batch, timeout=20)
    finally:
        rabbitmq.resume()
    assert [receipt.outcome for receipt in rabbit.publisher.finish(again)] == [CONFIRMED] * 20
    assert rabbit.row_ids() == list(range(1, 22))
