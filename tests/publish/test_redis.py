"""What can go wrong with Redis while publishing, and what becomes of the messages."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

import pytest
from kombu import Exchange, Queue
from kombu.transport import redis as kombu_redis
from redis import Redis as Client

from outbox_relay.publish.publisher import Outcome
from tests.publish.bench import Bench, counted
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Redis

CONFIRMED = Outcome.CONFIRMED
pipelines = pytest.mark.skipif(not hasattr(kombu_redis, "PublishBatch"), reason="kombu before 5.7 has no pipelines")


@pytest.fixture
def over_redis(redis_url: str) -> Iterator[Bench]:
    bench = Bench(redis_url)
    yield bench
    bench.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client.from_url(redis_url) as client:
        yield client


@pipelines
def test_messages_leave_in_pipelines(over_redis: Bench, client: Client) -> None:
    assert counted(over_redis.publish(over_redis.outs(1))) == {"confirmed": 1}
    before = client.info("stats")["total_reads_processed"]
    assert counted(over_redis.publish(over_redis.outs(500))) == {"confirmed": 500}
    assert client.info("stats")["total_reads_processed"] - before < 50


def test_priorities_go_to_the_lists_that_kombu_reads(over_redis: Bench, client: Client) -> None:
    assert (
        over_redis.publish([over_redis.out(properties={"priority": value}) for value in (0, 3, 7, 9)])
        == [CONFIRMED] * 4
    )
    assert {key.decode() for key in client.keys("work*")} == {"work", "work\x06\x163", "work\x06\x166", "work\x06\x169"}
    assert len(over_redis.row_ids()) == 4


@pytest.mark.owns_server
def test_what_a_full_redis_did_not_take_is_delivered_later(over_redis: Bench, client: Client) -> None:
    assert over_redis.publish(over_redis.outs(1)) == [CONFIRMED]
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    messages = over_redis.outs(5)
    try:
        assert CONFIRMED not in over_redis.publish(messages)
    finally:
        client.config_set("maxmemory", 0)
    assert over_redis.publish(messages) == [CONFIRMED] * 5
    assert over_redis.row_ids()[1:] == [message.key for message in messages]


@pipelines
@pytest.mark.owns_server
def test_nothing_is_confirmed_while_redis_is_out_of_memory_and_all_is_later(
    redis: Redis, over_redis: Bench, client: Client
) -> None:
    assert over_redis.publish(over_redis.outs(1)) == [CONFIRMED]
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", used + 2_000_000)
    messages = over_redis.outs(200, body=b"x" * 20_000)
    try:
        outcomes = over_redis.publish(messages)
        assert counted(outcomes).keys() == {"confirmed", "unsent"}
        assert over_redis.publisher.blocked
        assert over_redis.events == ["broker.blocked"]
        waiting = [row for row, outcome in zip(messages, outcomes, strict=True) if outcome is Outcome.UNSENT]
        client.config_set("maxmemory", 1)
        over_redis.publisher.pulse()
        assert over_redis.publisher.blocked
    finally:
        client.config_set("maxmemory", 0)
    over_redis.publisher.pulse()
    assert not over_redis.publisher.blocked
    assert counted(over_redis.publish(waiting)) == {"confirmed": len(waiting)}
    assert sorted(over_redis.row_ids()[1:]) == sorted(message.key for message in messages)
    assert over_redis.events == ["broker.blocked", "broker.unblocked"]


@pipelines
@pytest.mark.owns_server
def test_a_queue_cannot_be_declared_while_redis_is_out_of_memory(over_redis: Bench, client: Client) -> None:
    over_redis.app.conf.task_queues = [Queue("work"), Queue("video", Exchange("media", type="topic"), "video.#")]
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    messages = [*over_redis.outs(1), over_redis.out("video", exchange="media", routing_key="video.a")]
    try:
        assert over_redis.publish(messages) == [Outcome.UNSENT] * 2
        assert over_redis.publisher.blocked
    finally:
        client.config_set("maxmemory", 0)
    over_redis.publisher.pulse()
    assert over_redis.publish(messages) == [CONFIRMED] * 2


def test_a_key_of_another_type_refuses_its_own_rows(over_redis: Bench, client: Client) -> None:
    client.set("odd", "a string")
    rows = [over_redis.out(), over_redis.out("odd"), over_redis.out()]
    assert over_redis.publish(rows) == [CONFIRMED, Outcome.REFUSED, CONFIRMED]
    assert over_redis.row_ids() == [rows[0].key, rows[2].key]


def test_a_server_that_says_nothing_does_not_hold_a_call(redis: Redis, redis_url: str) -> None:
    bench = Bench(redis_url, proxied=redis.port, broker_transport_options={"socket_timeout": 1})
    proxy = bench.proxy
    assert proxy is not None
    try:
        assert bench.publish(bench.outs(1)) == [CONFIRMED]
        proxy.freeze = True
        begin = monotonic()
        assert CONFIRMED not in bench.publish(bench.outs(2), timeout=1.5)
        bench.publisher.pulse()
        assert monotonic() - begin < 8
        proxy.freeze = False
        proxy.cut()
        assert bench.publish(bench.outs(2)) == [CONFIRMED] * 2
    finally:
        proxy.freeze = False
        bench.close()


@pipelines
@pytest.mark.owns_server
def test_what_an_earlier_try_may_have_delivered_is_not_called_unsent(
    redis: Redis, redis_url: str, client: Client
) -> None:
    """The first answer is lost on the way, and at the second try the server takes no writes."""
    bench = Bench(redis_url, proxied=redis.port, broker_transport_options={"socket_timeout": 1})
    proxy = bench.proxy
    assert proxy is not None

    tries = []

    def on_data(data: bytes) -> None:
        proxy.swallow = False
        if b"LPUSH" in data:
            tries.append(data)
            proxy.swallow = len(tries) == 1
            client.config_set("maxmemory", len(tries) - 1)

    client.config_set("maxmemory-policy", "noeviction")
    try:
        assert bench.publish(bench.outs(1)) == [CONFIRMED]
        proxy.on_data = on_data
        messages = bench.outs(2)
        assert bench.publish(messages) == [Outcome.UNKNOWN] * 2
        assert bench.publisher.blocked
    finally:
        client.config_set("maxmemory", 0)
    assert bench.row_ids()[1:] == [message.key for message in messages]
    bench.close()


@pipelines
@pytest.mark.owns_server
def test_the_first_publish_after_a_restart_is_confirmed_for_real(redis: Redis, over_redis: Bench) -> None:
    assert over_redis.publish(over_redis.outs(1)) == [CONFIRMED]
    redis.stop()
    over_redis.forget_look()
    over_redis.publisher.pulse()
    assert not over_redis.publisher.connected
    redis.start()

    def connected() -> bool:
        over_redis.publisher.pulse()
        return over_redis.publisher.connected

    eventually(connected)
    late = over_redis.outs(2)
    assert over_redis.publish(late) == [CONFIRMED] * 2
    assert over_redis.row_ids()[-2:] == [message.key for message in late]
    assert over_redis.events == ["broker.lost", "broker.back"]
