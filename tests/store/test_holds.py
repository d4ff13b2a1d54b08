"""Holds: obeyed by every claim, whatever brought a row there; they take no place, and end with resume alone."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.core.leases import rearmed
from outbox_relay.core.namespaces import Scope
from outbox_relay.core.row import RowFilter
from outbox_relay.core.settlement import Retried, Settlement
from outbox_relay.errors import StoreError
from tests.store.bench import LEASE, OVER, delivery, done, failed, spread

if TYPE_CHECKING:
    from outbox_relay.store.outbox import Store
    from tests.store.bench import Bench

BUDGET = timedelta(seconds=5)


@pytest.fixture
def relay(bench: Bench) -> Store:
    """A relay that knows at once what is said."""
    return bench.another(cache_ttl=timedelta(0))


def claim(bench: Bench, relay: Store, limit: int = 100) -> list[int]:
    return [row.id for row in relay.claim(limit=limit, claimed_by=bench.me, lease=LEASE)]


def parked(bench: Bench) -> int:
    return bench.store.counts()["parked"]


@pytest.mark.parametrize(
    ("scope", "value"), [(Scope.NAMESPACE, "acme"), (Scope.WORKFLOW, "w1"), (Scope.TASK, "shop.mail")]
)
@pytest.mark.parametrize("tidied", [False, True], ids=["untidied", "tidied"])
def test_a_hold_keeps_its_rows_back_until_it_is_resumed(
    bench: Bench, relay: Store, scope: Scope, value: str, tidied: bool
) -> None:
    rows = bench.stage(3, "acme", workflow_id="w1", task="shop.mail")
    other = bench.stage(2, "globex", workflow_id="w2", task="shop.charge")
    bench.store.governing.pause(scope, value)
    if tidied:
        relay.directives()
        claim(bench, relay, 1)
        relay.tidy(BUDGET)
        assert parked(bench) == 3
    claimed = claim(bench, relay)
    assert not {one.row_id for one in rows} & set(claimed)
    assert claim(bench, relay) == []
    assert bench.store.governing.resume(scope, value) == (3 if tidied else 0)
    assert claim(bench, relay) == [one.row_id for one in rows]
    assert len(other) == 2


def test_a_row_without_a_workflow_is_not_held_by_a_hold_on_one(bench: Bench, relay: Store) -> None:
    (free,) = bench.stage(1)
    bench.stage(1, workflow_id="w1")
    bench.store.governing.pause(Scope.WORKFLOW, "w1")
    assert claim(bench, relay) == [free.row_id]


def test_twenty_held_rows_take_no_place_of_the_other_one(bench: Bench, relay: Store) -> None:
    bench.stage(20, workflow_id="held")
    (other,) = bench.stage(1)
    bench.store.governing.pause(Scope.WORKFLOW, "held")
    assert claim(bench, relay, 16) == [other.row_id]


def test_held_namespaces_take_no_place_in_a_small_batch(bench: Bench, relay: Store) -> None:
    for number in range(20):
        bench.stage(1, f"ns{number:02}", task="shop.mail")
    (other,) = bench.stage(1, "other")
    bench.store.governing.pause(Scope.TASK, "shop.mail")
    assert claim(bench, relay, 4) == [other.row_id]


def test_very_many_held_rows_at_the_head_are_passed_and_then_out_of_the_way(bench: Bench, relay: Store) -> None:
    bench.stage(12_000, workflow_id="held")
    (other,) = bench.stage(1)
    bench.store.governing.pause(Scope.WORKFLOW, "held")
    assert claim(bench, relay, 16) == [other.row_id]
    while relay.tidy(BUDGET):
        pass
    assert parked(bench) == 12_000
    assert bench.store.governing.resume(Scope.WORKFLOW, "held") == 12_000
    assert len(claim(bench, relay, 500)) == 500


def test_a_hold_is_obeyed_where_a_quota_counts_too(bench: Bench, relay: Store) -> None:
    bench.store.governing.set_namespace("acme", create=True, max_in_flight=5)
    bench.stage(20, "acme", workflow_id="held")
    free = bench.stage(3, "acme")
    bench.store.governing.pause(Scope.WORKFLOW, "held")
    assert claim(bench, relay) == [one.row_id for one in free]
    bench.store.governing.pause(Scope.NAMESPACE, "acme")
    bench.stage(3, "acme")
    assert claim(bench, relay) == []


def test_a_hold_is_obeyed_after_redrive_rearm_release_and_retry(bench: Bench, relay: Store) -> None:
    bench.stage(5, "acme")
    dead, lost, unsent, again, running = relay.claim(limit=5, claimed_by=bench.me, lease=OVER)
    bench.store.governing.pause(Scope.NAMESPACE, "acme")
    bench.settle(failed(dead), Settlement.retry(delivery(again), again.message.task_id, Retried(delay=0, retries=1)))
    bench.store.release([unsent.claim])
    bench.publish([running])
    bench.store.rearm(rearmed, limit=10)
    bench.store.redrive(RowFilter(ids=(dead.id,)))
    assert claim(bench, relay) == []
    while relay.tidy(BUDGET):
        pass
    assert claim(bench, relay) == []
    bench.settle(done(running))  # work in flight finishes
    assert bench.see(running.id).status.value == "done"
    bench.store.governing.resume(Scope.NAMESPACE, "acme")
    assert sorted(claim(bench, relay)) == sorted(row.id for row in (dead, lost, unsent, again))


def test_what_two_holds_keep_back_stays_until_both_are_resumed(bench: Bench, relay: Store) -> None:
    rows = bench.stage(3, "acme", workflow_id="w1")
    bench.store.governing.pause(Scope.NAMESPACE, "acme")
    bench.store.governing.pause(Scope.WORKFLOW, "w1")
    assert claim(bench, relay) == []
    relay.tidy(BUDGET)
    assert parked(bench) == 3
    bench.store.governing.resume(Scope.WORKFLOW, "w1")
    assert claim(bench, relay) == []
    relay.tidy(BUDGET)
    assert parked(bench) == 3
    bench.store.governing.resume(Scope.NAMESPACE, "acme")
    assert claim(bench, relay) == [one.row_id for one in rows]


def test_parked_rows_whose_hold_is_gone_come_back_even_where_the_resume_broke_off(bench: Bench, relay: Store) -> None:
    bench.stage(3, "acme")
    bench.store.governing.pause(Scope.NAMESPACE, "acme")
    claim(bench, relay)
    relay.tidy(BUDGET)
    assert parked(bench) == 3
    with bench.engine.begin() as connection:
        connection.execute(sa.delete(bench.tables.hold))  # and nothing else, as if its process had died then
    assert not relay.tidy(BUDGET)
    assert parked(bench) == 0
    assert len(claim(bench, relay)) == 3


def test_a_relay_that_starts_later_brings_them_back_too(bench: Bench) -> None:
    staged = bench.stage(3)
    bench.set([one.row_id for one in staged], parked=True)
    relay = bench.another()
    assert not relay.tidy(BUDGET)
    assert len(claim(bench, relay)) == 3


def test_leaving_pending_clears_parked(bench: Bench) -> None:
    bench.stage(4)
    batch = bench.claim(4, lease=OVER)
    bench.store.rearm(rearmed, limit=10)
    ids = [row.id for row in batch]
    bench.set(ids, parked=True)
    first, second, third, fourth = batch
    bench.settle(done(first), failed(second))
    bench.publish([third])
    bench.store.cancel(RowFilter(ids=(fourth.id,)))
    assert [bench.see(row_id).parked for row_id in ids] == [False] * 4
    assert [bench.see(row_id).status.value for row_id in ids] == ["done", "failed", "claimed", "cancelled"]


def test_a_resume_leaves_nothing_behind_while_relays_park(postgres_bench: Bench) -> None:
    """Who parks has read the hold under a lock: the resume waits for it, and then finds every row."""
    bench = postgres_bench
    bench.stage(4_000, workflow_id="w1")
    relays = [bench.another(cache_ttl=timedelta(0)) for _ in range(3)]
    stop = threading.Event()

    def tidy(relay: Store) -> None:
        while not stop.is_set():
            relay.tidy(timedelta(seconds=0.05))
            relay.claim(limit=1, claimed_by=bench.me, lease=LEASE)

    for _ in range(3):
        bench.store.governing.pause(Scope.WORKFLOW, "w1")
        threads = [threading.Thread(target=tidy, args=(relay,)) for relay in relays]
        stop.clear()
        for thread in threads:
            thread.start()
        while parked(bench) < 1_000:
            pass
        bench.store.governing.resume(Scope.WORKFLOW, "w1")
        assert parked(bench) == 0
        stop.set()
        for thread in threads:
            thread.join(30)


def test_no_rows_are_claimed_where_holds_cannot_be_read(bench: Bench) -> None:
    relay = bench.another(cache_ttl=timedelta(0))
    bench.stage(3)
    with bench.engine.begin() as connection:
        connection.execute(sa.insert(bench.tables.hold).values(scope="galaxy", value="x", created_at=bench.store.now()))
    for _ in range(2):
        with pytest.raises(StoreError, match="a hold cannot be understood"):
            claim(bench, relay)
    assert set(bench.statuses().values()) == {"pending"}


def test_no_rows_are_claimed_where_the_tables_of_what_is_said_are_gone(sqlite_bench: Bench) -> None:
    bench = sqlite_bench
    bench.stage(3)
    with bench.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE outbox_hold")
    with pytest.raises(StoreError, match="outbox migrate"):
        bench.claim()
    assert set(bench.statuses().values()) == {"pending"}


def test_holds_of_others_do_not_change_what_is_fair(bench: Bench, relay: Store) -> None:
    bench.stage(1, "idle")
    bench.store.governing.pause(Scope.NAMESPACE, "idle")
    for name, rows in {"a": 60, "b": 60, "c": 2}.items():
        bench.stage(rows, name)
    batch = relay.claim(limit=30, claimed_by=bench.me, lease=LEASE)
    assert spread(batch) == {"a": 14, "b": 14, "c": 2}
