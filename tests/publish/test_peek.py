"""Looking at a queue tells what waits there, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis import Redis as Client

from outbox_relay.core.explain import QueueSight
from outbox_relay.core.settlement import HEADER, Delivery
from outbox_relay.publish.peek import Depth, Depths, PeekError, look_at
from tests.publish.bench import Bench, make_app

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def depths(bench: Bench) -> Iterator[Depths]:
    depths = Depths(bench.app)
    yield depths
    depths.close()


def test_the_depth_of_a_queue(bench: Bench, depths: Depths) -> None:
    nobody = 0 if bench.url.startswith("amqp") else None
    bench.publish([*bench.outs(3), bench.out(properties={"priority": 9})])
    assert depths.depth("work") == Depth(4, nobody)
    assert len(bench.take()) == 4
    assert depths.depth("work") == Depth(0, nobody)


def test_a_queue_that_is_not_there(bench: Bench, depths: Depths) -> None:
    missing = None if bench.url.startswith("amqp") else Depth(0, None)
    assert depths.depth("nowhere") == missing
    assert depths.depth("nowhere") == missing
    assert depths.head("nowhere") is None
    bench.publish(bench.outs(1))
    looked = depths.depth("work")
    assert looked is not None
    assert looked.ready == 1


def test_one_look_tells_what_there_is_or_what_kept_it_from_looking(bench: Bench) -> None:
    amqp = bench.url.startswith("amqp")
    bench.publish(bench.outs(2))
    assert look_at(bench.app, "work") == QueueSight(ready=2, consumers=0 if amqp else None)
    assert look_at(bench.app, "nowhere") == (QueueSight(missing=True) if amqp else QueueSight(ready=0))


@pytest.mark.parametrize("url", ["amqp://guest:guest@127.0.0.1:9//", "redis://127.0.0.1:9/0"])
def test_a_look_at_a_broker_that_is_away_is_no_error(url: str) -> None:
    sight = look_at(make_app(url), "work")
    assert sight.ready is None
    assert sight.trouble


def test_consumers_are_counted_where_the_broker_tells(rabbit: Bench) -> None:
    depths = Depths(rabbit.app)
    rabbit.publish(rabbit.outs(1))
    with rabbit.connection.channel() as channel:
        channel.basic_consume("work", callback=lambda message: None)
        assert depths.depth("work") == Depth(0, 1)  # the one message is with the consumer
    depths.close()


def test_the_head_is_the_next_message_and_stays(bench: Bench, depths: Depths) -> None:
    first, second = bench.outs(2)
    bench.publish([first, second])
    if not depths.sees_heads:
        assert depths.head("work") is None
        return
    assert depths.head("work") == Delivery.parse(first.headers[HEADER])
    assert depths.head("work") == Delivery.parse(first.headers[HEADER])
    assert bench.row_ids() == [first.key, second.key]
    assert depths.head("work") is None


def test_a_head_that_is_not_ours_tells_nothing(bench: Bench, depths: Depths) -> None:
    with bench.connection.Producer() as producer:
        producer.publish({"plain": 1}, routing_key="work")
    assert depths.head("work") is None


def test_with_several_priorities_the_head_is_not_the_oldest_and_not_told(bench: Bench, depths: Depths) -> None:
    bench.publish(bench.outs(2, properties={"priority": 9}))
    assert (depths.head("work") is not None) == depths.sees_heads
    bench.publish([bench.out(properties={"priority": 0})])
    assert depths.head("work") is None


def test_a_prefix_of_all_keys_is_kept_to(redis_url: str) -> None:
    options = {"global_keyprefix": "shop:"}
    bench = Bench(redis_url, broker_transport_options=options)
    depths = Depths(bench.app)
    (message,) = bench.outs(1)
    bench.publish([message])
    with Client.from_url(redis_url) as client:
        assert client.llen("shop:work") == 1
    assert depths.depth("work") == Depth(1, None)
    head = depths.head("work")
    assert head is not None
    assert head.row_id == message.key
    depths.close()
    bench.close()


def test_looking_goes_on_after_the_connection_died(rabbit: Bench, slow_lane: Bench) -> None:
    depths = Depths(slow_lane.app)
    assert slow_lane.proxy is not None
    assert depths.depth("work") is None
    slow_lane.proxy.cut()
    assert depths.depth("work") is None
    depths.close()


@pytest.mark.parametrize("url", ["amqp://guest:guest@127.0.0.1:9//", "redis://127.0.0.1:9/0"])
def test_a_broker_that_cannot_be_asked_is_told(url: str) -> None:
    depths = Depths(make_app(url))
    with pytest.raises(PeekError):
        depths.depth("work")
