"""Rows that wait for longer than their leases: in a queue, or for somebody who is away. Nobody is taken for dead."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import eventually, never

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flow.conftest import OpenShop
    from tests.flow.stand import Program, Shop

MANY = 1_000
LEASE = 5.0


@pytest.mark.parametrize("stack", ["postgresql-rabbitmq", "postgresql-redis"])
def test_thousands_that_wait_in_a_queue_for_longer_than_a_lease_are_published_once_a_lease_at_most(
    open_shop: OpenShop, stack: str
) -> None:
    """None fails, none runs twice, and those that were published together keep their order."""
    shop = open_shop(stack, outbox_queue_lease=LEASE)
    shop.relay(wait=False)
    staged = shop.stage_many(MANY)
    began = time.monotonic()
    eventually(lambda: shop.counts().get("claimed") == MANY, 40)
    never(lambda: "failed" in shop.counts(), 2 * LEASE, every=0.5)
    shop.worker("-c", "1", pool="solo", wait=False)
    shop.all_done(MANY, within=80)
    leases = (time.monotonic() - began) / LEASE
    rows = [shop.row(staged[n]) for n in range(0, MANY, 100)]
    assert all((row.attempt, row.failures) == (0, 0) for row in rows)
    assert max(row.rearms for row in rows) <= (leases if stack.endswith("rabbitmq") else 0)
    runs = shop.runs()
    waves = [(shop.row(one).rearms, one.row_id, one.task_id) for one in staged]
    assert runs == [task_id for _, _, task_id in sorted(waves)]


@contextmanager
def away(request: pytest.FixtureRequest, shop: Shop, relay: Program, what: str) -> Iterator[None]:
    """Take one thing away, and give it back."""
    if what == "relay":
        assert relay.end() == 0
        yield
        shop.relay(wait=False)
        return
    server = request.getfixturevalue("postgres" if what == "database" else "rabbitmq")
    shop.hang_up()
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.mark.owns_server
@pytest.mark.parametrize("what", ["relay", "database", "broker"])
def test_what_is_away_for_longer_than_every_lease_lets_tasks_run_on(
    open_shop: OpenShop, request: pytest.FixtureRequest, what: str
) -> None:
    shop = open_shop(outbox_queue_lease=LEASE)
    relay = shop.relay(wait=False)
    shop.worker(wait=False)
    running = [shop.stage("wait"), shop.stage("wait")]
    queued = shop.stage("charge")
    eventually(lambda: all(shop.row(one).started_at for one in running), 40)
    with away(request, shop, relay, what):
        never(lambda: len(shop.runs()) != 2, LEASE + 2)
    eventually(lambda: all(shop.row(one).lease_until > shop.outbox.store.now() for one in running), 40)
    never(lambda: any(shop.row(one).rearms for one in running), 3)
    shop.open_gate()
    for one in (*running, queued):
        shop.becomes(one, "done", within=40)
    assert [len(shop.runs(one)) for one in (*running, queued)] == [1, 1, 1]
    assert [shop.row(one).attempt for one in (*running, queued)] == [0, 0, 0]
