"""What publishing promises over every broker."""

from __future__ import annotations

import gc
import os
import tracemalloc
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from kombu import Exchange, Queue

from outbox_relay.core.settlement import HEADER, Delivery
from outbox_relay.publish.envelope import outgoing, report
from outbox_relay.publish.publisher import Outcome, expires_messages
from outbox_relay.publish.queues import beacons_for, settlements_queue
from tests.publish.bench import BODY, SETTLEMENTS, Bench, counted

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIRMED = Outcome.CONFIRMED


def test_the_message_is_the_staged_one_with_the_header_the_retries_and_no_eta(bench: Bench) -> None:
    row = bench.row(
        attempt=2,
        retries=5,
        headers={"eta": "2030-01-01T00:00:00+00:00", "expires": "2031-01-01T00:00:00+00:00", "x": "1", "retries": 0},
        properties={"priority": 7, "reply_to": "replies", "expiration": "1000"},
    )
    assert bench.publish([outgoing(row, bench.queues, settlement_queue=SETTLEMENTS)]) == [CONFIRMED]
    (message,) = bench.take()
    body = message.body.encode() if isinstance(message.body, str) else message.body
    assert body == BODY
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    assert Delivery.parse(message.headers[HEADER]) == Delivery(row.id, 2, row.token, SETTLEMENTS)
    assert message.headers["retries"] == 5
    assert message.headers["eta"] is None
    assert message.headers["expires"] == "2031-01-01T00:00:00+00:00"
    assert message.headers["x"] == "1"
    assert message.properties["priority"] == 7
    assert message.properties["correlation_id"] == str(row.id)
    assert message.properties["reply_to"] == "replies"
    assert message.properties["delivery_mode"] == 2
    assert "expiration" not in message.properties


def test_messages_of_a_queue_arrive_in_their_order_and_once(bench: Bench) -> None:
    messages = bench.outs(1_200)
    assert counted(bench.publish(messages)) == {"confirmed": 1_200}
    assert bench.row_ids() == [message.key for message in messages]


def test_each_row_goes_to_the_queue_of_its_route(bench: Bench) -> None:
    rows = [
        bench.out(namespace="acme"),
        bench.out(namespace="acme", node="box-7"),
        bench.out(node="box-7"),
        bench.out(),
    ]
    assert bench.publish(rows) == [CONFIRMED] * 4
    assert [bench.row_ids(name) for name in ("acme:work", "acme:work@box-7", "work@box-7", "work")] == [
        [row.key] for row in rows
    ]


def test_the_first_message_after_a_queue_was_deleted_arrives(bench: Bench) -> None:
    assert bench.publish(bench.outs(2)) == [CONFIRMED] * 2
    bench.delete("work")
    late = bench.outs(3)
    assert bench.publish(late) == [CONFIRMED] * 3
    assert bench.row_ids()[-3:] == [message.key for message in late]


def test_nothing_to_publish_is_nothing_done(bench: Bench) -> None:
    assert bench.publish([]) == []


def test_a_large_body_arrives_whole(bench: Bench) -> None:
    body = os.urandom(700_000).hex().encode()
    assert bench.publish([bench.out(body=body), bench.out()]) == [CONFIRMED] * 2
    first = bench.take()[0].body
    assert (first.encode() if isinstance(first, str) else first) == body


def test_a_topic_exchange_of_the_app_is_used_as_the_row_says(bench: Bench) -> None:
    media = Exchange("media", type="topic")
    bench.app.conf.task_queues = [Queue("work"), Queue("video", media, routing_key="video.#")]
    good = bench.out("video", exchange="media", routing_key="video.hd")
    assert bench.publish([good]) == [CONFIRMED]
    assert bench.row_ids("video") == [good.key]


def test_an_unroutable_message_is_told_and_does_not_touch_the_others(bench: Bench) -> None:
    bench.app.conf.task_queues = [Queue("work"), Queue("video", Exchange("media", type="topic"), "video.#")]
    rows = [bench.out(), bench.out("video", exchange="media", routing_key="audio.mp3"), bench.out()]
    assert bench.publish(rows) == [CONFIRMED, Outcome.UNROUTABLE, CONFIRMED]
    assert bench.row_ids() == [rows[0].key, rows[2].key]
    assert bench.row_ids("video") == []


def test_reports_go_to_the_queues_that_the_header_names(bench: Bench) -> None:
    settlements, beacons = settlements_queue(SETTLEMENTS), beacons_for(SETTLEMENTS)
    assert bench.publish([report(1, settlements, b"{}"), report(2, beacons, b"[]", persistent=False)]) == [
        CONFIRMED,
        CONFIRMED,
    ]
    (settlement,), (beacon,) = bench.take(SETTLEMENTS), bench.take("outbox.beacons.shop")
    assert settlement.properties["delivery_mode"] == 2
    assert beacon.properties["delivery_mode"] == 1


def test_a_closed_publisher_opens_again(bench: Bench) -> None:
    bench.publisher.close()
    assert bench.publish(bench.outs(1)) == [CONFIRMED]
    bench.publisher.close()
    bench.publisher.close()
    assert bench.publish(bench.outs(1)) == [CONFIRMED]
    assert len(bench.take()) == 2


def test_pulse_connects_an_idle_publisher(bench: Bench) -> None:
    assert not bench.publisher.connected
    bench.publisher.pulse()
    assert bench.publisher.connected
    assert not bench.publisher.blocked
    assert bench.events == []


def test_a_connection_is_not_shared_with_a_child_process(bench: Bench) -> None:
    """Publish in the parent, then in a forked child, then in the parent: each has its own connection."""
    mine, childs, again = bench.outs(3), bench.outs(3), bench.outs(3)
    assert bench.publish(mine) == [CONFIRMED] * 3
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = not bench.publisher.connected and bench.publish(childs) == [CONFIRMED] * 3
            bench.publisher.close()
        finally:
            os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bench.publisher.connected
    assert bench.publish(again) == [CONFIRMED] * 3
    assert bench.row_ids() == [message.key for message in (*mine, *childs, *again)]
    assert bench.events == []


def test_a_name_over_255_bytes_fails_its_own_row_alone(bench: Bench) -> None:
    rows = [bench.out(), bench.out(properties={"correlation_id": "é" * 200}), bench.out()]
    outcomes = bench.publish(rows)
    assert (outcomes[0], outcomes[2]) == (CONFIRMED, CONFIRMED)
    if bench.url.startswith("amqp"):
        assert outcomes[1] is Outcome.UNSENDABLE
        assert bench.row_ids() == [rows[0].key, rows[2].key]
    else:
        assert outcomes[1] is CONFIRMED


def test_only_rabbitmq_lets_messages_expire(bench: Bench) -> None:
    assert expires_messages(bench.app) == bench.url.startswith("amqp")
    row = bench.row()
    out = outgoing(row, bench.queues, settlement_queue=SETTLEMENTS, expiration=timedelta(minutes=1))
    assert out.properties["expiration"] == "60000"


# -- a broker that is away ----------------------------------------------------------------------------------------


@pytest.fixture(params=["rabbitmq", "redis"])
def distant(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A broker behind a proxy."""
    server = request.getfixturevalue(request.param)
    bench = Bench(request.getfixturevalue(f"{request.param}_url"), proxied=server.port)
    yield bench
    bench.close()


def test_every_call_ends_in_time_while_the_broker_is_away(distant: Bench) -> None:
    assert distant.proxy is not None
    distant.proxy.refuse = True
    for _ in range(3):
        begin = monotonic()
        assert counted(distant.publish(distant.outs(5), timeout=0.5)) == {"unsent": 5}
        distant.publisher.pulse()
        assert monotonic() - begin < 5
    assert not distant.publisher.connected
    assert distant.events == ["broker.lost"]


def test_publishing_goes_on_by_itself_when_the_broker_is_back(distant: Bench) -> None:
    assert distant.proxy is not None
    distant.proxy.refuse = True
    messages = distant.outs(5)
    assert counted(distant.publish(messages, timeout=0.2)) == {"unsent": 5}
    distant.proxy.refuse = False
    assert counted(distant.publish(messages)) == {"confirmed": 5}
    assert distant.row_ids() == [message.key for message in messages]
    assert distant.events == ["broker.lost", "broker.back"]


def test_a_connection_that_died_while_idle_costs_nothing(distant: Bench) -> None:
    assert distant.proxy is not None
    assert distant.publish(distant.outs(1)) == [CONFIRMED]
    distant.proxy.cut()
    late = distant.outs(2)
    assert distant.publish(late) == [CONFIRMED] * 2
    assert set(distant.row_ids()) >= {message.key for message in late}


def test_memory_stays_flat_while_the_broker_is_away(distant: Bench) -> None:
    assert distant.proxy is not None
    distant.proxy.refuse = True
    messages = distant.outs(100)

    def try_often(times: int) -> int:
        for _ in range(times):
            distant.publish(messages, timeout=0.01)
            distant.publisher.pulse()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = try_often(10)
        after = try_often(60)
    finally:
        tracemalloc.stop()
    assert after - before < 100_000
