"""What can go wrong with RabbitMQ while publishing, and what becomes of the messages."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from kombu import Exchange, Queue, binding

from outbox_relay.publish.publisher import Outcome
from tests.publish.bench import Bench, counted
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_relay.publish.receipts import Publisher, Receipt
    from tests.support.servers import RabbitMQ

CONFIRMED = Outcome.CONFIRMED


def pulse_until(publisher: Publisher, condition: Any, within: float = 15.0) -> None:
    def step() -> bool:
        publisher.pulse()
        return bool(condition())

    eventually(step, within)


# -- what the broker refuses --------------------------------------------------------------------------------------


def test_a_missing_exchange_fails_its_own_rows_and_no_other(rabbit: Bench) -> None:
    """And none of the others is sent twice, although RabbitMQ closes the channel over it."""
    good = rabbit.outs(50)
    bad = [rabbit.out(exchange="nowhere", routing_key="x") for _ in range(3)]
    begin = monotonic()
    outcomes = rabbit.publish([*good[:25], *bad, *good[25:]])
    assert monotonic() - begin < 10
    assert outcomes == [CONFIRMED] * 25 + [Outcome.UNROUTABLE] * 3 + [CONFIRMED] * 25
    assert rabbit.row_ids() == [message.key for message in good]
    assert rabbit.publish([*bad, *rabbit.outs(1)])[-1] is CONFIRMED
    assert rabbit.events == []


def test_an_exchange_that_was_deleted_is_made_again(rabbit: Bench) -> None:
    rabbit.app.conf.task_queues = [Queue("video", Exchange("media", type="topic"), "video.#")]
    assert rabbit.publish([rabbit.out("video", exchange="media", routing_key="video.a")]) == [CONFIRMED]
    with rabbit.connection.channel() as channel:
        channel.exchange_delete("media")
    assert rabbit.publish([rabbit.out("video", exchange="media", routing_key="video.b")]) == [CONFIRMED]
    assert len(rabbit.row_ids("video")) == 2


def test_a_queue_declared_otherwise_refuses_its_own_rows_and_no_other(rabbit: Bench) -> None:
    media = Exchange("media", type="direct")
    rabbit.declare(Queue("video", media, "video", queue_arguments={"x-max-priority": 10}))
    rabbit.app.conf.task_queues = [Queue("work"), Queue("video", media, "video")]
    rows = [rabbit.out(), rabbit.out("video", exchange="media", routing_key="video"), rabbit.out()]
    receipts = rabbit.publisher.publish(rows, timeout=10)
    assert [receipt.outcome for receipt in receipts] == [CONFIRMED, Outcome.REFUSED, CONFIRMED]
    assert "x-max-priority" in receipts[1].detail
    assert rabbit.row_ids() == [rows[0].key, rows[2].key]


def test_an_exchange_that_is_none_of_the_apps_is_published_to_as_the_sender_said(rabbit: Bench) -> None:
    """Nothing is declared for it: the row's task queue has no part in the way."""
    rabbit.declare(Queue("theirs", Exchange("theirs", type="fanout")))
    rabbit.declare(Queue("work", queue_arguments={"x-max-priority": 10}))
    rows = [rabbit.out(exchange="theirs", routing_key="x"), rabbit.out(exchange="nobodys", routing_key="x")]
    assert rabbit.publish(rows) == [CONFIRMED, Outcome.UNROUTABLE]
    assert rabbit.row_ids("theirs") == [rows[0].key]


def test_a_queue_with_bindings_to_other_exchanges_is_declared_for_them(rabbit: Bench) -> None:
    bindings = [binding(Exchange(name, type="topic"), routing_key="#") for name in ("news", "events")]
    rabbit.app.conf.task_queues = [Queue("work"), Queue("both", bindings=bindings)]
    rows = [rabbit.out("both", exchange=name, routing_key="a.b") for name in ("news", "events")]
    assert rabbit.publish(rows) == [CONFIRMED] * 2
    assert rabbit.row_ids("both") == [row.key for row in rows]


def test_a_queue_that_is_there_takes_rows_however_it_was_declared(rabbit: Bench) -> None:
    rabbit.declare(Queue("acme:work", queue_arguments={"x-max-priority": 10}))
    assert rabbit.publish([rabbit.out(namespace="acme"), rabbit.out()]) == [CONFIRMED] * 2


def test_a_declaration_that_rabbitmq_cannot_follow_refuses_its_own_rows(rabbit: Bench) -> None:
    rabbit.app.conf.task_queues = [Queue("work"), Queue("odd", queue_arguments={"x-queue-type": "no-such-type"})]
    rows = [rabbit.out(), rabbit.out("odd"), rabbit.out()]
    assert rabbit.publish(rows) == [CONFIRMED, Outcome.REFUSED, CONFIRMED]


def test_a_full_queue_refuses_what_it_does_not_take(rabbit: Bench) -> None:
    full = {"x-max-length": 3, "x-overflow": "reject-publish"}
    rabbit.declare(Queue("work", queue_arguments=full))
    messages, others = rabbit.outs(10), rabbit.outs(10, "other")
    outcomes = rabbit.publish([one for pair in zip(messages, others, strict=True) for one in pair])
    assert outcomes[1::2] == [CONFIRMED] * 10
    taken = counted(outcomes[0::2])
    assert taken == {"confirmed": taken["confirmed"], "refused": 10 - taken["confirmed"]}
    ids = rabbit.row_ids()
    assert ids == [row.key for row, outcome in zip(messages, outcomes[0::2], strict=True) if outcome is CONFIRMED]
    refused = [row for row in messages if row.key not in ids][:1]
    assert rabbit.publish(refused) == [CONFIRMED]


def test_a_message_over_the_brokers_limit_fails_alone(rabbitmq: RabbitMQ, rabbit: Bench) -> None:
    before = rabbitmq.ctl("eval", "application:get_env(rabbit, max_message_size).").strip()
    rabbitmq.ctl("eval", "application:set_env(rabbit, max_message_size, 100000).")
    try:
        rows = [rabbit.out(), rabbit.out(body=b"x" * 200_000), *rabbit.outs(20)]
        outcomes = rabbit.publish(rows)
        if outcomes[1] is CONFIRMED:
            pytest.skip("this RabbitMQ reads its limit at its start alone")
        assert outcomes == [CONFIRMED, Outcome.UNSENDABLE] + [CONFIRMED] * 20
        assert set(rabbit.row_ids()) == {row.key for row in rows if row is not rows[1]}
        again = [rabbit.out(), rabbit.out(body=b"x" * 200_000), rabbit.out()]
        assert rabbit.publish(again) == [CONFIRMED, Outcome.UNSENDABLE, CONFIRMED]
        assert rabbit.row_ids() == [again[0].key, again[2].key]  # the limit is known by now: nothing is sent twice
    finally:
        number = before.strip("{}").split(",")[-1]
        rabbitmq.ctl("eval", f"application:set_env(rabbit, max_message_size, {number}).")


def test_headers_over_a_frame_fail_alone(rabbit: Bench) -> None:
    rows = [rabbit.out(), rabbit.out(headers={"argsrepr": "x" * 140_000}), rabbit.out()]
    assert rabbit.publish(rows) == [CONFIRMED, Outcome.UNSENDABLE, CONFIRMED]
    assert rabbit.row_ids() == [rows[0].key, rows[2].key]
    assert rabbit.events == []


def test_a_body_of_many_frames_is_no_header(rabbit: Bench) -> None:
    rows = [rabbit.out(headers={"argsrepr": "x" * 100_000}, body=b"[" + b"1," * 300_000 + b"1]"), rabbit.out()]
    assert rabbit.publish(rows) == [CONFIRMED] * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"routing_key": "k" * 300},
        {"properties": {"priority": 300}},
        {"properties": {"reply_to": 7}},
        {"headers": {"n" * 300: 1}},
        {"headers": {"big": 2**70}},
    ],
    ids=["routing key", "priority", "type of a property", "name of a header", "integer"],
)
def test_what_amqp_cannot_carry_fails_alone(rabbit: Bench, fields: dict[str, Any]) -> None:
    rows = [rabbit.out(), rabbit.out(**fields), rabbit.out()]
    assert rabbit.publish(rows) == [CONFIRMED, Outcome.UNSENDABLE, CONFIRMED]
    assert rabbit.row_ids() == [rows[0].key, rows[2].key]
    assert rabbit.events == []


def test_a_property_that_the_broker_rejects_fails_alone(rabbit: Bench) -> None:
    """RabbitMQ closes the channel over a wrong user_id, and does not say over which message."""
    rows = [*rabbit.outs(5), rabbit.out(properties={"user_id": "somebody"}), *rabbit.outs(5)]
    outcomes = rabbit.publish(rows)
    assert outcomes == [CONFIRMED] * 5 + [Outcome.UNSENDABLE] + [CONFIRMED] * 5
    assert set(rabbit.row_ids()) == {row.key for row in rows} - {rows[5].key}


def test_missing_permission_is_a_refusal(rabbitmq: RabbitMQ, rabbit: Bench) -> None:
    vhost = rabbit.connection.virtual_host
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    rabbitmq.ctl("set_permissions", "-p", vhost, "guest", ".*", "^$", ".*")
    try:
        rabbit.publisher.close()
        assert counted(rabbit.publish(rabbit.outs(20))) == {"refused": 20}
    finally:
        rabbitmq.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    assert counted(rabbit.publish(rabbit.outs(20))) == {"confirmed": 20}


# -- connections that die -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [1, 4])
def test_a_connection_cut_before_its_confirms_loses_nothing(slow_lane: Bench, cuts: int) -> None:
    """The proxy takes the bytes, passes them on or not, drops the confirms, and cuts."""
    proxy = slow_lane.proxy
    assert proxy is not None
    assert slow_lane.publish(slow_lane.outs(1)) == [CONFIRMED]
    left, seen = cuts, 0

    def on_data(data: bytes) -> None:
        nonlocal left, seen
        seen += len(data)
        if left and seen > 60_000:
            left, seen = left - 1, 0
            proxy.cut()

    proxy.on_data = on_data
    messages = slow_lane.outs(1_000)
    outcomes = slow_lane.publish(messages)
    assert left == 0
    assert counted(outcomes) == {"confirmed": 1_000}
    assert {message.key for message in messages} <= set(slow_lane.row_ids())


def test_what_was_not_confirmed_is_never_called_so(slow_lane: Bench) -> None:
    """The proxy accepts the bytes and no confirm ever comes back: the outcome is not known, within the time given."""
    proxy = slow_lane.proxy
    assert proxy is not None
    assert slow_lane.publish(slow_lane.outs(1)) == [CONFIRMED]
    slow_lane.take()
    proxy.swallow = True
    messages = slow_lane.outs(20)
    begin = monotonic()
    outcomes = slow_lane.publish(messages, timeout=1)
    assert monotonic() - begin < 4
    assert CONFIRMED not in outcomes
    assert Outcome.UNKNOWN in outcomes
    proxy.swallow = False
    proxy.cut()
    assert counted(slow_lane.publish(messages)) == {"confirmed": 20}
    assert {message.key for message in messages} <= set(slow_lane.row_ids())


def test_a_confirm_that_comes_late_is_not_asked_for_twice(slow_lane: Bench) -> None:
    """Publishing the same delivery again while its confirm is under way waits for that confirm, and sends nothing."""
    proxy = slow_lane.proxy
    assert proxy is not None
    assert slow_lane.publish(slow_lane.outs(1)) == [CONFIRMED]
    slow_lane.take()
    messages = slow_lane.outs(30)
    proxy.on_data = lambda data: setattr(proxy, "freeze", True)
    assert counted(slow_lane.publish(messages, timeout=0.5)).get("confirmed", 0) == 0
    proxy.on_data, proxy.freeze = None, False
    assert counted(slow_lane.publish(messages)) == {"confirmed": 30}
    assert sorted(slow_lane.row_ids()) == sorted(message.key for message in messages)


def test_a_confirm_that_comes_late_is_told(slow_lane: Bench) -> None:
    proxy = slow_lane.proxy
    assert proxy is not None
    assert slow_lane.publish(slow_lane.outs(1)) == [CONFIRMED]
    messages = slow_lane.outs(30)
    proxy.on_data = lambda data: setattr(proxy, "freeze", True)
    assert counted(slow_lane.publish(messages, timeout=0.5)) == {"unknown": 30}
    slow_lane.publisher.pulse()
    assert slow_lane.publisher.late() == []
    proxy.on_data, proxy.freeze = None, False
    told: list[Receipt] = []
    pulse_until(slow_lane.publisher, lambda: told.extend(slow_lane.publisher.late()) or len(told) == 30)
    assert {(receipt.key, receipt.outcome) for receipt in told} == {(message.key, CONFIRMED) for message in messages}


def test_a_confirm_that_never_comes_is_told_when_its_connection_is_gone(slow_lane: Bench) -> None:
    proxy = slow_lane.proxy
    assert proxy is not None
    assert slow_lane.publish(slow_lane.outs(1)) == [CONFIRMED]
    proxy.swallow = True
    assert counted(slow_lane.publish(slow_lane.outs(3), timeout=0.5)) == {"unknown": 3}
    proxy.cut()
    told: list[Receipt] = []
    pulse_until(slow_lane.publisher, lambda: told.extend(slow_lane.publisher.late()) or len(told) == 3)
    assert {receipt.outcome for receipt in told} == {Outcome.UNKNOWN}


def test_a_peer_that_says_nothing_does_not_hold_a_call(slow_lane: Bench) -> None:
    """A connection that is open and dead: every call ends, also the closing one."""
    proxy = slow_lane.proxy
    assert proxy is not None
    assert slow_lane.publish(slow_lane.outs(1)) == [CONFIRMED]
    proxy.freeze = True
    begin = monotonic()
    big = slow_lane.outs(30, body=b"x" * 300_000)  # more than the network between takes
    assert CONFIRMED not in slow_lane.publish(big, timeout=1)
    slow_lane.publisher.pulse()
    slow_lane.publisher.close()
    assert monotonic() - begin < 12
    proxy.freeze = False


def test_connections_closed_by_the_operator_lose_nothing(rabbitmq: RabbitMQ, rabbit: Bench) -> None:
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    rabbitmq.ctl("close_all_connections", "--vhost", rabbit.connection.virtual_host, "a test")
    messages = rabbit.outs(10)
    assert counted(rabbit.publish(messages)) == {"confirmed": 10}
    assert {message.key for message in messages} <= set(rabbit.row_ids())
    assert rabbit.events == ["broker.lost", "broker.back"]


@pytest.fixture
def quick(rabbitmq_url: str) -> Iterator[Bench]:
    bench = Bench(rabbitmq_url, heartbeat=2.0)
    yield bench
    bench.close()


def test_an_idle_connection_is_kept_by_its_pulse(quick: Bench) -> None:
    assert quick.publish(quick.outs(1)) == [CONFIRMED]
    begin = monotonic()
    pulse_until(quick.publisher, lambda: monotonic() - begin > 7)
    assert quick.events == []
    late = quick.outs(1)
    assert quick.publish(late) == [CONFIRMED]
    assert quick.row_ids()[1:] == [late[0].key]


def test_a_connection_that_nobody_looked_after_is_made_anew(rabbitmq: RabbitMQ, quick: Bench) -> None:
    assert quick.publish(quick.outs(1)) == [CONFIRMED]
    quick.forget_look()
    vhost = unquote(quick.url.rpartition("/")[2])
    eventually(lambda: vhost not in rabbitmq.ctl("list_connections", "vhost"), within=30)  # heartbeats were missed
    late = quick.outs(1)
    assert quick.publish(late) == [CONFIRMED]
    assert quick.row_ids()[1:] == [late[0].key]
    assert quick.events == ["broker.lost", "broker.back"]


@pytest.mark.owns_server
def test_the_first_publish_after_a_restart_is_confirmed_for_real(rabbitmq: RabbitMQ, rabbit: Bench) -> None:
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    rabbitmq.stop()
    rabbit.forget_look()
    rabbit.publisher.pulse()
    assert not rabbit.publisher.connected
    waiting = rabbit.outs(2)
    assert counted(rabbit.publish(waiting, timeout=0.5)) == {"unsent": 2}
    rabbitmq.start()
    pulse_until(rabbit.publisher, lambda: rabbit.publisher.connected)
    assert rabbit.publish(waiting) == [CONFIRMED] * 2
    assert rabbit.row_ids()[-2:] == [message.key for message in waiting]
    assert rabbit.events == ["broker.lost", "broker.back"]


# -- a broker that takes nothing at present -----------------------------------------------------------------------


@pytest.mark.owns_server
@pytest.mark.parametrize("size", [100, 20_000])
def test_a_memory_alarm_is_noticed_and_nothing_is_lost_or_sent_twice(
    rabbitmq: RabbitMQ, rabbit: Bench, size: int
) -> None:
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    rabbit.take()
    rabbitmq.ctl("set_vm_memory_high_watermark", "0.0001")
    try:
        messages = rabbit.outs(300, body=b"x" * size)
        begin = monotonic()
        outcomes = rabbit.publish(messages, timeout=10)
        assert monotonic() - begin < 15
        assert rabbit.publisher.blocked
        assert Outcome.UNSENT in outcomes
        unsure = [row for row, outcome in zip(messages, outcomes, strict=True) if outcome is not CONFIRMED]
        begin = monotonic()
        assert CONFIRMED not in rabbit.publish(unsure, timeout=10)
        assert monotonic() - begin < 5
        begin = monotonic()
        pulse_until(rabbit.publisher, lambda: monotonic() - begin > 1.5)
        assert rabbit.events == ["broker.blocked"]
    finally:
        rabbitmq.ctl("set_vm_memory_high_watermark", "0.4")
    if size == 100:
        pulse_until(rabbit.publisher, lambda: not rabbit.publisher.blocked)
    else:  # a caller that only publishes, again and again, hears of the end as well
        eventually(lambda: rabbit.publish(unsure[:1], timeout=1) == [CONFIRMED], 15)
        unsure.pop(0)
    assert counted(rabbit.publish(unsure)) == {"confirmed": len(unsure)}
    assert sorted(rabbit.row_ids()) == sorted(message.key for message in messages)
    assert rabbit.events == ["broker.blocked", "broker.unblocked"]


@pytest.mark.owns_server
def test_closing_does_not_wait_for_a_broker_that_blocks(rabbitmq: RabbitMQ, rabbit: Bench) -> None:
    assert rabbit.publish(rabbit.outs(1)) == [CONFIRMED]
    rabbitmq.ctl("set_vm_memory_high_watermark", "0.0001")
    try:
        rabbit.publish(rabbit.outs(3), timeout=3)
        assert rabbit.publisher.blocked
        begin = monotonic()
        rabbit.publisher.close()
        assert monotonic() - begin < 1
    finally:
        rabbitmq.ctl("set_vm_memory_high_watermark", "0.4")
