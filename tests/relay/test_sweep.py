"""What a sweep makes of the rows that it claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kombu import Connection, Exchange, Queue

from outbox_relay.core.row import Published
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from outbox_relay.relay.sweep import Sweep
    from tests.relay.conftest import Bench, OpenBench
    from tests.support.servers import RabbitMQ


def sweep_all(sweep: Sweep) -> None:
    while sweep.tick() == 0:
        pass


def test_due_rows_are_published_and_marked(open_bench: OpenBench, database_url: str, broker_url: str) -> None:
    bench = open_bench(database_url, broker_url, outbox_batch_size=10)
    staged = bench.stage(25)
    sweep = bench.sweep()
    sweep_all(sweep)
    sweep.drain()
    rows = [bench.row(one) for one in staged]
    assert {row.status.value for row in rows} == {"claimed"}
    assert {row.published_to for row in rows} == {"shop"}
    with Connection(broker_url) as connection:
        assert connection.default_channel.queue_declare("shop", passive=True).message_count == 25


def test_a_sweep_with_nothing_to_do_waits_for_the_poll(bench: Bench) -> None:
    assert bench.sweep().tick() == bench.parts.settings.poll_interval.total_seconds()


def test_a_row_whose_expires_has_passed_is_cancelled_and_not_sent(bench: Bench) -> None:
    (staged,) = bench.stage(options={"expires": 0.05})
    sweep = bench.sweep()

    def cancelled() -> bool:
        return bool(bench.row(staged).expires_at < bench.outbox.store.now())

    eventually(cancelled, 5)
    sweep_all(sweep)
    assert bench.row(staged).status.value == "cancelled"
    assert bench.said("sweep.published") == []
    assert bench.said("sweep.expired") == [{"rows": 1}]


@pytest.mark.parametrize(("app_wide", "row"), [("publish", None), ("outcome", "publish")])
def test_confirmed_is_done_where_that_is_asked_for(
    open_bench: OpenBench, sqlite_url: str, embedded_url: str, app_wide: str, row: str | None
) -> None:
    bench = open_bench(sqlite_url, embedded_url, outbox_settle_on=app_wide)
    (staged,) = bench.stage(settle_on=row)
    sweep_all(bench.sweep())
    assert bench.row(staged).status.value == "done"


def test_a_message_that_nobody_would_send_again_does_not_expire(
    open_bench: OpenBench, sqlite_url: str, rabbitmq_url: str
) -> None:
    """Its row is done when it is published, so that no lease ends and no copy could run beside it."""
    bench = open_bench(sqlite_url, rabbitmq_url)
    bench.stage(settle_on="publish")
    bench.stage()
    sweep_all(bench.sweep())
    with Connection(rabbitmq_url) as connection:
        channel = connection.channel()
        lives = [channel.basic_get("shop", no_ack=True).properties.get("expiration") for _ in range(2)]
    assert lives == [None, "3570000"]


def test_a_batch_that_took_half_its_lease_is_given_back_unsent(bench: Bench) -> None:
    """By the relay's own clock, which no other clock can contradict (lesson 25)."""
    staged = bench.stage(3)
    now = [0.0]

    def slow_clock() -> float:
        now[0] += 10.0
        return now[0]

    sweep = bench.sweep(clock=slow_clock)
    sweep.tick()
    sweep.drain()
    rows = [bench.row(one) for one in staged]
    assert {row.status.value for row in rows} == {"pending"}
    assert all(row.attempt == 0 and row.claim_token is None for row in rows)


def test_rows_for_a_queue_that_refuses_wait_by_a_growing_delay_and_hold_up_nobody(
    open_bench: OpenBench, sqlite_url: str, rabbitmq_url: str
) -> None:
    """No attempt is spent; the state is told when it changes, not with every row (B09, B70, lessons 24 and 30)."""
    with Connection(rabbitmq_url) as connection:
        full = Queue("full", queue_arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        full(connection.default_channel).declare()
    bench = open_bench(sqlite_url, rabbitmq_url)
    bench.publisher.pulse()
    blocked = bench.stage(3, task_queue="full")
    free = bench.stage(3)
    sweep = bench.sweep()
    sweep_all(sweep)
    bench.stage(2, task_queue="full")
    sweep_all(sweep)
    sweep.drain()
    for one in blocked:
        row = bench.row(one)
        assert (row.status.value, row.attempt, row.failures) == ("pending", 0, 0)
        assert row.visible_after > row.created_at
        why = bench.outbox.inspect.explain(one.task_id)[0].why  # it may be due again by now
        assert (
            "the circuit of its queue full is open" in why or "its queue full refused the last message because " in why
        )
    assert all(bench.row(one).published_at for one in free)
    assert [one["queue"] for one in bench.said("sweep.undeliverable")] == ["full"]


def test_a_queue_that_takes_messages_again_is_told_of(
    open_bench: OpenBench, sqlite_url: str, rabbitmq_url: str
) -> None:
    with Connection(rabbitmq_url) as connection:
        full = Queue("full", queue_arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        full(connection.default_channel).declare()
        bench = open_bench(sqlite_url, rabbitmq_url)
        bench.publisher.pulse()
        (staged,) = bench.stage(task_queue="full")
        sweep = bench.sweep()
        sweep_all(sweep)
        assert bench.said("sweep.undeliverable")
        connection.default_channel.queue_delete("full")
    eventually(lambda: (sweep_all(sweep), bench.row(staged).published_at)[1], 10)
    assert bench.said("sweep.delivered") == [{"queue": "full"}]
    sweep.drain()


def test_a_doubt_that_nobody_resolves_does_not_outlast_its_row(bench: Bench) -> None:
    """Not every broker says in the end whether it took a message; the row is re-armed when its lease is over."""
    now = [1_000.0]
    sweep = bench.sweep(clock=lambda: now[0])
    (staged,) = bench.stage()
    (row,) = bench.outbox.store.claim(limit=1, claimed_by=bench.parts.instance, lease=bench.parts.leases.publish)
    sweep._doubts[staged.row_id] = Published(row.claim, "shop"), now[0]
    sweep.tick()
    assert sweep._doubts
    now[0] += bench.parts.leases.queue.total_seconds() + 1
    sweep.tick()
    assert not sweep._doubts
    sweep.drain()


def test_an_unsendable_row_fails_alone(open_bench: OpenBench, sqlite_url: str, rabbitmq_url: str) -> None:
    bench = open_bench(sqlite_url, rabbitmq_url)
    bench.publisher.pulse()
    (huge,) = bench.stage(options={"headers": {"x": "y" * 300_000}})  # more than a frame of RabbitMQ's takes
    (fine,) = bench.stage()
    sweep_all(bench.sweep())
    assert bench.row(huge).status.value == "failed"
    assert bench.row(fine).published_at
    assert [one["row_id"] for one in bench.said("sweep.unsendable")] == [huge.row_id]


@pytest.mark.owns_server
def test_nothing_is_claimed_while_the_broker_is_away(
    open_bench: OpenBench, sqlite_url: str, rabbitmq: RabbitMQ, rabbitmq_url: str
) -> None:
    """Each look ends in bounded time, and the wait leaves nothing behind (B04, B13)."""
    bench = open_bench(sqlite_url, rabbitmq_url)
    rabbitmq.stop()
    try:
        (staged,) = bench.stage()
        sweep = bench.sweep()
        for _ in range(3):
            assert sweep.tick() > 0
        assert bench.row(staged).status.value == "pending"
        assert len(bench.said("broker.lost")) == 1
    finally:
        rabbitmq.start()
    eventually(lambda: (sweep_all(sweep), bench.row(staged).published_at)[1], 20)
    sweep.drain()


def test_messages_go_where_a_missing_exchange_does_not_stop_them(
    open_bench: OpenBench, sqlite_url: str, rabbitmq_url: str
) -> None:
    """B01."""
    bench = open_bench(
        sqlite_url, rabbitmq_url, task_queues=[Queue("odd", Exchange("odd", passive=True)), Queue("shop")]
    )
    bench.publisher.pulse()
    (bad,) = bench.stage(options={"queue": "odd"})
    (good,) = bench.stage(options={"queue": "shop"})
    sweep = bench.sweep()
    sweep_all(sweep)
    sweep.drain()
    assert bench.row(good).published_at
    row = bench.row(bad)
    assert (row.status.value, row.attempt) == ("pending", 0)
    assert row.error
