"""Placement in claims: one decision for every path, made when a row is claimed and never written to it."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from outbox_relay.core.beacon import Beacon
from outbox_relay.core.directives import Directives
from outbox_relay.core.namespaces import PlacementKind, Scope
from outbox_relay.core.placement import Placement, Route, queue_name
from tests.store.bench import LEASE, spread

if TYPE_CHECKING:
    from uuid import UUID

    from outbox_relay.core.row import Batch
    from outbox_relay.store.outbox import Store
    from tests.store.bench import Bench

BUDGET = timedelta(seconds=5)
TTL = timedelta(seconds=35)


@pytest.fixture
def relay(bench: Bench) -> Store:
    """A relay that knows at once what is said."""
    return bench.another(cache_ttl=timedelta(0))


def claim(bench: Bench, relay: Store, limit: int = 100) -> Batch:
    return relay.claim(limit=limit, claimed_by=bench.me, lease=LEASE)


def place(bench: Bench, namespace: str, kind: PlacementKind, *nodes: str) -> None:
    bench.store.governing.set_namespace(namespace, create=True, placement=kind, nodes=nodes)


def worker(bench: Bench, *queues: str, instance: UUID | None = None) -> UUID:
    """A worker that has just been heard of, consuming these queues."""
    beacon = Beacon(instance=instance or uuid.uuid4(), hostname="w", pool="prefork", queues=queues)
    bench.store.beacon(beacon, run_lease=timedelta(minutes=1), message_expires=True)
    return beacon.instance


def silent(bench: Bench, instance: UUID, age: timedelta = 2 * TTL) -> None:
    """The worker's last beacon is that old."""
    table = bench.tables.worker
    with bench.engine.begin() as connection:
        seen = bench.store.now() - age
        connection.execute(sa.update(table).where(table.c.instance == instance).values(last_seen_at=seen))


def beacons_are_read(bench: Bench, relay: Store) -> None:
    """Let it have been so for three heartbeats, without waiting for them."""
    bench.store.relay_seen(bench.me, "r", "sweep settle", TTL, applied=bench.store.now())
    liveness = relay._claims._notices._liveness
    relay.look_around()
    liveness._since = float("-inf")


def nodes(rows: Batch) -> Counter[str | None]:
    return Counter(row.node for row in rows)


def test_an_unplaced_row_goes_to_the_pool_and_an_authored_one_to_its_node(bench: Bench, relay: Store) -> None:
    worker(bench, "acme:celery@n1")
    bench.stage(2, "acme")
    bench.stage(1, "acme", node="n9")
    assert nodes(claim(bench, relay)) == {None: 2, "n9": 1}


def test_prefer_spreads_over_the_live_nodes_and_spills_into_the_pool(bench: Bench, relay: Store) -> None:
    beacons_are_read(bench, relay)
    place(bench, "acme", PlacementKind.PREFER, "n1", "n2", "n3")
    bench.stage(3, "acme")
    assert nodes(claim(bench, relay)) == {None: 3}
    worker(bench, "acme:celery@n1")
    worker(bench, "acme:celery@n3", "acme:mail@n2")
    bench.stage(10, "acme")
    assert nodes(claim(bench, relay)) == {"n1": 5, "n3": 5}
    bench.stage(2, "acme", task_queue="mail")
    assert nodes(claim(bench, relay)) == {"n2": 2}


def test_rows_claimed_one_by_one_are_spread_too(bench: Bench, relay: Store) -> None:
    place(bench, "acme", PlacementKind.PREFER, "n1", "n2")
    worker(bench, "acme:celery@n1", "acme:celery@n2")
    bench.stage(6, "acme")
    assert Counter(claim(bench, relay, 1)[0].node for _ in range(6)) == {"n1": 3, "n2": 3}


def test_pinned_waits_for_a_node_that_it_requires_and_spends_nothing(bench: Bench, relay: Store) -> None:
    place(bench, "acme", PlacementKind.PINNED, "n1")
    worker(bench, "acme:celery", "acme:celery@n2")  # its pool, and a node that it does not ask for
    rows = bench.stage(3, "acme")
    other = bench.stage(2, "other")
    assert spread(claim(bench, relay, 4)) == {"other": 2}
    assert len(other) == 2
    relay.tidy(BUDGET)
    waiting = bench.see(rows[0].row_id)
    assert (waiting.parked, waiting.attempt, waiting.failures, waiting.node) == (True, 0, 0, None)
    worker(bench, "acme:celery@n1")
    assert not relay.tidy(BUDGET)
    batch = claim(bench, relay)
    assert nodes(batch) == {"n1": 3}
    assert bench.column(batch[0].id, "node") is None  # never written to the row


def test_pinned_and_authored_goes_to_its_node_or_waits_outside_the_set(bench: Bench, relay: Store) -> None:
    place(bench, "acme", PlacementKind.PINNED, "n1", "n2")
    bench.stage(1, "acme", node="n2")
    bench.stage(1, "acme", node="n3")
    assert nodes(claim(bench, relay)) == {"n2": 1}
    worker(bench, "acme:celery@n3", "acme:celery@n1")
    assert claim(bench, relay) == []
    bench.store.governing.set_namespace("acme", create=False, placement=PlacementKind.UNPLACED, nodes=())
    assert nodes(claim(bench, relay)) == {"n3": 1}


def test_a_pin_is_obeyed_where_a_quota_counts_too(bench: Bench, relay: Store) -> None:
    place(bench, "acme", PlacementKind.PINNED, "n1")
    bench.store.governing.set_namespace("acme", create=False, max_in_flight=2)
    bench.stage(5, "acme")
    assert claim(bench, relay) == []
    worker(bench, "acme:celery@n1")
    assert nodes(claim(bench, relay)) == {"n1": 2}


def test_placement_of_default_and_of_shared_queues(bench: Bench, relay: Store) -> None:
    place(bench, "default", PlacementKind.PINNED, "n1")
    place(bench, "acme", PlacementKind.PINNED, "n1")
    worker(bench, "celery@n1")
    bench.stage(1)
    bench.stage(1, "acme")
    assert spread(claim(bench, relay)) == {"default": 1}
    shared = bench.another(cache_ttl=timedelta(0), namespace_queues=False)
    assert nodes(claim(bench, shared)) == {"n1": 1}


def test_many_waiting_rows_leave_the_due_index_and_come_back_when_their_node_does(bench: Bench, relay: Store) -> None:
    place(bench, "acme", PlacementKind.PINNED, "n1")
    bench.stage(6_000, "acme")
    assert claim(bench, relay) == []
    while relay.tidy(BUDGET):
        pass
    assert bench.store.counts()["parked"] == 6_000
    worker(bench, "acme:celery@n1")
    while relay.tidy(BUDGET):
        pass
    assert bench.store.counts()["parked"] == 0
    assert len(claim(bench, relay, 500)) == 500


# -- life and death ---------------------------------------------------------------------------------------------------


def test_a_preferred_node_that_is_known_to_be_silent_is_dead(bench: Bench, relay: Store) -> None:
    place(bench, "acme", PlacementKind.PREFER, "n1")
    gone = worker(bench, "acme:celery@n1")
    beacons_are_read(bench, relay)
    bench.stage(2, "acme")
    assert nodes(claim(bench, relay, 1)) == {"n1": 1}
    silent(bench, gone)
    assert nodes(claim(bench, relay, 1)) == {None: 1}


def test_nobody_is_judged_dead_while_beacons_are_not_read(bench: Bench, relay: Store) -> None:
    place(bench, "acme", PlacementKind.PREFER, "n1")
    gone = worker(bench, "acme:celery@n1")
    relay.look_around()
    silent(bench, gone)
    bench.stage(1, "acme")
    assert nodes(claim(bench, relay)) == {"n1": 1}


def test_a_relay_that_starts_judges_nobody_dead_who_was_as_fresh_as_any(bench: Bench) -> None:
    place(bench, "acme", PlacementKind.PINNED, "n1", "n2")
    first, second = worker(bench, "acme:celery@n1"), worker(bench, "acme:celery@n2")
    silent(bench, first, timedelta(hours=3))  # this one had been dead for long when reading stopped
    silent(bench, second, timedelta(hours=1))
    bench.stage(4, "acme")
    assert nodes(claim(bench, bench.another())) == {"n2": 4}


def test_one_unreadable_placement_stops_its_namespace_alone(bench: Bench, relay: Store) -> None:
    bench.store.governing.set_namespace("acme", create=True)
    table = bench.tables.namespace
    for placement, said in (("orbit", '["n1"]'), ("pinned", "no list"), ("pinned", "[]"), ("prefer", '["a b"]')):
        with bench.engine.begin() as connection:
            connection.execute(
                sa.update(table).where(table.c.namespace == "acme").values(placement=placement, nodes=said)
            )
        bench.stage(1, "acme")
        bench.stage(1, "other")
        assert spread(claim(bench, relay)) == {"other": 1}
    bench.store.governing.set_namespace("acme", create=False, placement=PlacementKind.UNPLACED, nodes=())
    relay.tidy(BUDGET)
    assert spread(claim(bench, relay)) == {"acme": 4}


# -- the same decision in SQL and in the core -------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True], ids=["own queues", "shared queues"])
def test_a_claim_takes_exactly_the_rows_that_the_decision_permits(bench: Bench, shared: bool) -> None:
    """Every kind of placement, node, task queue, workflow and task, against the pure decision."""
    relay = bench.another(cache_ttl=timedelta(0), namespace_queues=not shared)
    kinds = dict(zip(("u", "p", "x", "default"), (*PlacementKind, PlacementKind.PINNED), strict=True))
    for namespace, kind in kinds.items():
        place(bench, namespace, kind, *(() if kind is PlacementKind.UNPLACED else ("n1", "n2")))
    routes = [Route(name, "celery", "n1") for name in kinds] + [Route("p", "mail", "n3")]
    live = [queue_name(route, namespace_queues=not shared) for route in routes]
    worker(bench, *live)
    bench.store.governing.pause(Scope.WORKFLOW, "w1")
    bench.store.governing.pause(Scope.TASK, "t1")
    staged: dict[int, dict[str, Any]] = {}
    for namespace, node, task_queue, workflow_id, task in itertools.product(
        kinds, (None, "n1", "n3"), ("celery", "mail"), (None, "w1", "w2"), ("t1", "t2")
    ):
        options = {"node": node, "task_queue": task_queue, "workflow_id": workflow_id, "task": task}
        (row,) = bench.stage(1, namespace, **options)
        staged[row.row_id] = {"namespace": namespace, **options}
    said = Directives(
        placements={
            name: Placement(kind, ("n1", "n2")) for name, kind in kinds.items() if kind is not PlacementKind.UNPLACED
        },
        holds={Scope.WORKFLOW: frozenset({"w1"}), Scope.TASK: frozenset({"t1"})},
        live_queues=frozenset(live),
        namespace_queues=not shared,
    )
    kept = {
        row_id
        for row_id, one in staged.items()
        if said.keeps(Route(one["namespace"], one["task_queue"], one["node"]), one["task"], one["workflow_id"])
    }
    batch = claim(bench, relay, 1_000)
    assert {row.id for row in batch} == set(staged) - kept
    for row in batch:
        one = staged[row.id]
        route = Route(one["namespace"], one["task_queue"], one["node"])
        assert row.node in said.nodes_for(route)
    while relay.tidy(BUDGET):
        pass
    assert {row_id for row_id in staged if bench.column(row_id, "parked")} == kept
