"""How a relay ends: it drains, it can be told twice, and it does not live on when a part of it has died."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.proxy import Proxy
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.flow.conftest import OpenShop
    from tests.support.servers import RabbitMQ


def test_sigterm_in_the_middle_of_a_batch_leaves_no_claim_behind(open_shop: OpenShop) -> None:
    """What was not sent is pending again, what was sent is marked, and no attempt is spent (B68, lesson 2)."""
    shop = open_shop(quick=False, outbox_batch_size=100)
    relay = shop.relay()
    shop.stage_many(3000)
    eventually(lambda: relay.count("published 100 rows") >= 2, 20, every=0.001)
    assert relay.end() == 0
    rows = shop.outbox.store.ls(limit=5000)
    claimed = [row for row in rows if row.status.value == "claimed"]
    pending = [row for row in rows if row.status.value == "pending"]
    assert len(claimed) + len(pending) == 3000
    assert pending
    assert all(row.published_at for row in claimed)
    assert all(row.claim_token is None and row.attempt == 0 for row in pending)
    assert shop.waiting() == len(claimed)
    assert shop.outbox.store.relays() == []


def test_a_database_that_falls_silent_does_not_keep_a_relay_from_its_end(open_shop: OpenShop) -> None:
    shop = open_shop(outbox_drain_timeout=1)
    proxy = Proxy(int(sa.make_url(shop.database_url).port or 0))
    try:
        shop.conf["outbox_database_url"] = proxy.url(shop.database_url)
        relay = shop.relay()
        proxy.freeze = True
        assert relay.end(within=10) == 1
        assert relay.says("did not drain in time")
    finally:
        proxy.close()


@pytest.mark.owns_server
def test_a_second_signal_ends_a_relay_at_once(open_shop: OpenShop, rabbitmq: RabbitMQ) -> None:
    shop = open_shop(quick=False)
    relay = shop.relay()
    shop.stage("charge")
    eventually(lambda: relay.says("published 1 row"), 20)
    rabbitmq.pause()
    try:
        shop.stage_many(5)
        eventually(lambda: relay.says("claimed 5 rows"), 20)
        relay.send(signal.SIGTERM)
        eventually(lambda: relay.says("drains: SIGTERM"), 10)
        relay.send(signal.SIGTERM)
        assert relay.wait(2) == 130
    finally:
        rabbitmq.resume()


@pytest.mark.owns_server
def test_a_broker_that_falls_silent_does_not_keep_a_relay_from_its_end(open_shop: OpenShop, rabbitmq: RabbitMQ) -> None:
    """There is nothing left to do for it: no row is claimed, and what it has not said stays where it is."""
    shop = open_shop(quick=False, outbox_drain_timeout=20)
    relay = shop.relay()
    staged = shop.stage("charge")
    eventually(lambda: relay.says("published 1 row"), 20)
    rabbitmq.pause()
    try:
        began = time.monotonic()
        assert relay.end(within=18) == 0
        assert time.monotonic() - began < 12
    finally:
        rabbitmq.resume()
    assert shop.row(staged).published_at is not None
    assert shop.outbox.store.relays() == []


@pytest.mark.owns_server
def test_a_relay_stops_in_time_while_its_broker_blocks_and_marks_nothing_that_was_not_confirmed(
    open_shop: OpenShop, rabbitmq: RabbitMQ
) -> None:
    """A memory alarm; then, when it is over, every row is delivered (B02)."""
    shop = open_shop()
    relay = shop.relay()
    rabbitmq.ctl("set_vm_memory_high_watermark", "0")
    try:
        staged = shop.stage_many(3)
        eventually(lambda: relay.says("blocks publishers"), 20)
        assert relay.end(within=15) in (0, 1)
        assert all(shop.row(one).published_at is None for one in staged)
    finally:
        rabbitmq.ctl("set_vm_memory_high_watermark", "0.6")
    shop.relay(wait=False)
    shop.worker(wait=False)
    shop.all_done(3, within=40)


def test_a_loop_that_dies_takes_the_process_down(open_shop: OpenShop) -> None:
    shop = open_shop()
    relay = shop.relay()
    with shop.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE outbox_row RENAME COLUMN parked TO parked_once")
    assert relay.wait(20) == 1
    assert "died" in relay.log.read_text()


def test_another_outbox_cannot_take_a_name_that_is_owned(open_shop: OpenShop) -> None:
    """Two outboxes under one name would eat each other's reports; an operator knows when one of them is no more."""
    shop = open_shop()
    shop.relay().end()
    other = open_shop("sqlite-embedded")
    for key in ("broker_url", "task_default_queue"):
        other.conf[key] = shop.conf[key]
    refused = other.relay(wait=False)
    assert refused.wait(20) == 1
    assert "another outbox" in refused.log.read_text()
    other.relay("--take-over").end()
    other.relay().end()
    assert shop.relay(wait=False).wait(20) == 1
