"""Rows that are cancelled wherever they are: pending, queued, reserved, running; one by one and thousands at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.support.waiting import eventually, never

if TYPE_CHECKING:
    from outbox_relay.core.row import Staged
    from tests.flow.conftest import OpenShop
    from tests.flow.stand import Shop

MANY = 10_000
ONE_AT_A_TIME = ("-c", "1", "--prefetch-multiplier", "2")


def cancel(shop: Shop, *arguments: str) -> str:
    """Let the command line do it, and return what it says."""
    program = shop.start("cancel", "outbox", "cancel", *arguments, "--yes")
    assert program.wait(60) == 0, program.tail()
    return program.tail()


def error(shop: Shop, staged: Staged) -> str:
    return str(shop.row(staged).error)


def test_a_row_is_cancelled_wherever_it_is_and_what_ran_all_the_same_is_recorded(open_shop: OpenShop) -> None:
    shop = open_shop(worker_prefetch_multiplier=2)
    shop.relay(wait=False)
    shop.worker(*ONE_AT_A_TIME, wait=False)
    running = shop.stage("wait")
    eventually(lambda: shop.row(running).started_at, 40)
    reserved = shop.stage("charge")
    eventually(lambda: shop.row(reserved).worker, 20)
    queued = [shop.stage("charge"), shop.stage("charge")]
    pending = shop.stage("charge", options={"options": {"countdown": 3_600}})
    eventually(lambda: all(shop.row(one).published_at for one in queued), 20)
    rows = [running, reserved, *queued, pending]
    assert "cancelled 5 rows" in cancel(shop, *(str(one.row_id) for one in rows))
    assert {shop.status(one) for one in rows} == {"cancelled"}
    shop.open_gate()
    shop.becomes(shop.stage("charge"), "done", within=30)
    eventually(lambda: "it ran all the same" in error(shop, running), 20)
    assert all("its worker says: revoked" in error(shop, one) for one in (reserved, *queued))
    assert "worker" not in error(shop, pending)
    never(lambda: any(shop.status(one) != "cancelled" for one in rows), 2)
    assert len(shop.runs()) == 2


def test_ten_thousand_queued_rows_are_cancelled_at_once_and_the_next_row_is_not_kept_waiting(
    open_shop: OpenShop,
) -> None:
    shop = open_shop(quick=False, outbox_heartbeat=1, outbox_worker_ttl=5, outbox_run_lease=10)
    shop.relay(wait=False)
    shop.worker(*ONE_AT_A_TIME, wait=False)
    running = shop.stage("wait")
    eventually(lambda: shop.row(running).started_at, 40)
    staged = shop.stage_many(MANY, workflow_id="w")
    eventually(lambda: shop.waiting() >= MANY - 10, 60)
    began = time.monotonic()
    assert f"cancelled {MANY:,} rows" in cancel(shop, "--workflow", "w")
    assert time.monotonic() - began < 20
    assert shop.counts() == {"claimed": 1, "cancelled": MANY}
    shop.open_gate()
    shop.becomes(shop.stage("charge"), "done", within=60)
    assert len(shop.runs()) == 2
    assert shop.status(staged[-1]) == "cancelled"
