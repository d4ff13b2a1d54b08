"""Brokers and databases that go away and come back: nothing is lost, no attempt is spent, and nobody has to help."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from kombu import Connection
from redis import Redis

from tests.flow import shop as shop_app
from tests.support.waiting import eventually, never

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flow.conftest import OpenShop
    from tests.flow.stand import Shop
    from tests.support.servers import Postgres, RabbitMQ

pytestmark = pytest.mark.owns_server


def database_of(shop: Shop) -> str:
    return str(sa.make_url(shop.database_url).database)


def no_attempt_was_spent(shop: Shop) -> None:
    for row in shop.outbox.store.ls(limit=1000):
        assert (row.attempt, row.failures) == (0, 0)


@pytest.mark.parametrize("stack", ["postgresql-rabbitmq", "postgresql-redis"])
def test_a_broker_that_restarts_costs_nothing(open_shop: OpenShop, request: pytest.FixtureRequest, stack: str) -> None:
    """Rows staged before, while and after it is away are all done; one event tells of the outage (B03, B05)."""
    shop = open_shop(stack)
    relay = shop.relay(wait=False)
    shop.worker(wait=False)
    shop.stage_many(10)
    shop.all_done(10, within=40)
    broker: Any = request.getfixturevalue(stack.partition("-")[2])
    broker.stop()
    began = time.monotonic()
    shop.stage_many(10)
    assert time.monotonic() - began < 1
    eventually(lambda: relay.says("is away"), 20)
    eventually(lambda: shop.counts().get("pending", 0) + shop.counts().get("claimed", 0) == 10, 20)
    broker.start()
    shop.stage_many(10)
    shop.all_done(30, within=90)
    no_attempt_was_spent(shop)
    assert len(shop.runs()) == 30


def test_a_relay_that_starts_before_its_broker_waits_for_it(open_shop: OpenShop, rabbitmq: RabbitMQ) -> None:
    shop = open_shop()
    rabbitmq.stop()
    try:
        relay, impatient = shop.relay(wait=False), shop.relay(wait=False)
        staged = shop.stage_many(3)
        eventually(lambda: relay.says("is away") and impatient.says("is away"), 20)
        assert impatient.end() == 0
    finally:
        rabbitmq.start()
    eventually(lambda: all(shop.row(one).published_at for one in staged), 30)
    assert relay.count("is away") <= 3  # one line an outage and connection, not one a try


def test_a_queue_that_is_deleted_while_the_relay_is_idle_is_made_again(open_shop: OpenShop) -> None:
    shop = open_shop()
    shop.relay(wait=False)
    shop.stage("charge")
    eventually(lambda: shop.counts().get("claimed"), 20)
    with Connection(shop.conf["broker_url"]) as connection:
        connection.default_channel.queue_delete("shop")
    staged = shop.stage("charge")
    shop.worker(wait=False)
    shop.becomes(staged, "done", within=30)


def test_what_was_lost_with_a_deleted_queue_comes_back_when_its_lease_ends(open_shop: OpenShop) -> None:
    shop = open_shop()
    shop.relay(wait=False)
    staged = shop.stage_many(5)
    eventually(lambda: all(shop.row(one).published_at for one in staged), 20)
    with Connection(shop.conf["broker_url"]) as connection:
        connection.default_channel.queue_delete("shop")
    shop.worker(wait=False)
    shop.all_done(5, within=40)
    no_attempt_was_spent(shop)
    assert all(len(shop.runs(one)) == 1 for one in staged)


def test_database_sessions_that_are_terminated_again_and_again_cost_nothing(
    open_shop: OpenShop, postgres: Postgres
) -> None:
    """The relay recovers unaided, and stays awake: LISTEN comes back too (B50, B86)."""
    shop = open_shop(outbox_poll_interval=30)
    relay = shop.relay(wait=False)
    shop.worker(wait=False)
    shop.stage("charge")
    shop.all_done(1, within=40)
    for round_ in range(2, 5):
        shop.hang_up()
        postgres.terminate_sessions(database_of(shop))
        shop.stage("charge")
        shop.all_done(round_, within=20)
    assert not relay.ended
    no_attempt_was_spent(shop)


def test_a_listener_that_is_killed_costs_a_poll_and_then_wakes_again(open_shop: OpenShop, postgres: Postgres) -> None:
    shop = open_shop(outbox_poll_interval=2)
    relay = shop.relay(wait=False)
    shop.worker(wait=False)
    shop.becomes(shop.stage("charge"), "done", within=40)
    postgres.terminate_sessions(database_of(shop), application="outbox listener")
    shop.becomes(shop.stage("charge"), "done", within=10)
    eventually(lambda: relay.says("woken by the database again"), 15)


def test_a_database_that_restarts_while_a_task_runs_still_learns_its_outcome(
    open_shop: OpenShop, postgres: Postgres
) -> None:
    shop = open_shop()
    shop.relay(wait=False)
    worker = shop.worker(wait=False)
    running = shop.stage("wait")
    eventually(lambda: shop.runs(running), 30)
    shop.hang_up()
    postgres.stop()
    shop.open_gate()
    eventually(lambda: worker.says("succeeded"), 20)
    postgres.start()
    shop.becomes(running, "done", within=30)
    shop.becomes(shop.stage("charge"), "done", within=20)
    assert len(shop.runs(running)) == 1
    no_attempt_was_spent(shop)


def test_an_outage_of_all_workers_spends_no_attempt(open_shop: OpenShop) -> None:
    """Messages expire and rows are re-armed, as often as it takes (lessons 14 and 21)."""
    shop = open_shop(outbox_queue_lease=2.5)
    shop.relay(wait=False)
    staged = shop.stage_many(5)
    eventually(lambda: all(shop.row(one).rearms >= 3 for one in staged), 60)
    assert shop.counts().get("failed") is None
    no_attempt_was_spent(shop)
    shop.worker(wait=False)
    shop.all_done(5, within=40)
    assert all(len(shop.runs(one)) == 1 for one in staged)


def test_a_backlog_on_a_broker_that_keeps_messages_is_not_published_twice(open_shop: OpenShop) -> None:
    shop = open_shop("postgresql-redis", outbox_queue_lease=2.5)
    shop.relay(wait=False)
    staged = shop.stage_many(5)
    eventually(lambda: all(shop.row(one).published_at for one in staged), 30)
    leases = {one.row_id: shop.row(one).lease_until for one in staged}
    eventually(lambda: all(shop.row(one).lease_until > leases[one.row_id] for one in staged), 30)
    assert all(shop.row(one).rearms == 0 for one in staged)
    shop.worker(wait=False)
    shop.all_done(5, within=40)
    assert len(shop.runs()) == 5


def test_a_broker_that_stalls_for_three_leases_gets_no_message_twice(open_shop: OpenShop, rabbitmq: RabbitMQ) -> None:
    """The relay is alive, and waits for the confirms of what it sent (B59)."""
    shop = open_shop()
    relay = shop.relay()
    first = shop.stage("charge")
    eventually(lambda: shop.row(first).published_at, 20)
    rabbitmq.pause()
    try:
        staged = shop.stage_many(5)
        eventually(lambda: shop.counts().get("claimed", 0) >= 2, 20)
        never(lambda: relay.ended, 6)
    finally:
        rabbitmq.resume()
    eventually(lambda: all(shop.row(one).published_at for one in staged), 30)
    shop.worker(wait=False)
    shop.all_done(6, within=40)
    assert len(shop.runs()) == 6


@contextmanager
def taking_nothing(request: pytest.FixtureRequest, shop: Shop) -> Iterator[None]:
    """The shop's broker is out of memory."""
    if "redis" in shop.conf["broker_url"]:
        with Redis.from_url(shop.conf["broker_url"]) as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 1)
            try:
                yield
            finally:
                client.config_set("maxmemory", 0)
        return
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
    rabbitmq.ctl("set_vm_memory_high_watermark", "0.0000001")
    try:
        yield
    finally:
        rabbitmq.ctl("set_vm_memory_high_watermark", "0.6")


@pytest.mark.parametrize("stack", ["postgresql-rabbitmq", "postgresql-redis"])
def test_a_broker_that_takes_no_messages_for_longer_than_a_lease_lets_tasks_run_on(
    open_shop: OpenShop, request: pytest.FixtureRequest, stack: str
) -> None:
    """No beacon gets through: silence that means nothing, also right after its end."""
    shop = open_shop(stack)
    shop.relay(wait=False)
    shop.worker(wait=False)
    staged = shop.stage("wait")
    eventually(lambda: shop.row(staged).started_at, 30)
    with taking_nothing(request, shop):
        eventually(lambda: shop.row(staged).lease_until < shop.outbox.store.now(), 20)
    eventually(lambda: shop.row(staged).lease_until > shop.outbox.store.now(), 20)
    shop.open_gate()
    row = shop.becomes(staged, "done", within=30)
    assert (row.rearms, len(shop.runs(staged))) == (0, 1)


@pytest.mark.parametrize("stack", ["postgresql-rabbitmq", "postgresql-redis"])
def test_workers_without_the_outbox_are_told_about_at_the_third_delivery(open_shop: OpenShop, stack: str) -> None:
    """Somebody takes the messages and says nothing: a dead letter that asks the right question."""
    shop = open_shop(stack, outbox_queue_lease=2.5)
    shop.relay(wait=False)
    mute = shop.start("mute", "worker", "-P", "solo", "-l", "INFO", "--without-mingle", env={shop_app.MUTE: "yes"})
    staged = shop.stage("charge")
    row = shop.becomes(staged, "failed", within=60)
    queue = shop.conf["task_default_queue"]
    assert row.error == f"no worker of queue {queue} reports: is the outbox installed there?"
    assert len(shop.runs(staged)) == 3
    assert not mute.ended
