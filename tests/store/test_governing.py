"""Namespaces, holds and workflows as operators set and see them; and who registers a namespace."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.core.namespaces import UNLIMITED, NamespaceState, PlacementKind, Scope
from outbox_relay.core.row import RowFilter
from outbox_relay.errors import StagingError
from outbox_relay.store.governing import Governing
from outbox_relay.store.staging import insert_rows
from tests.store.bench import HOUR, Statements, done, failed, new_row

if TYPE_CHECKING:
    from outbox_relay.core.namespaces import NamespaceInfo
    from tests.store.bench import Bench

MINUTE = timedelta(minutes=1)


def see(bench: Bench, name: str, default: int | None = None) -> NamespaceInfo:
    (one,) = bench.store.governing.namespaces(default, name)
    return one


# -- namespaces ----------------------------------------------------------------------------------------------------


def test_a_namespace_is_seen_with_what_it_has_in_flight_due_and_parked(bench: Bench) -> None:
    bench.stage(6, "acme")
    bench.stage(1, "acme", delay=HOUR)
    bench.stage(2)
    claimed = [row for row in bench.claim(8) if row.namespace == "acme"][:2]
    bench.store.release([row.claim for row in bench.claim(8)])
    others = [row.id for row in bench.store.ls(namespace="acme", status="claimed") if row.id != claimed[0].id]
    bench.set(others, status="pending", claim_token=None)
    bench.set(others[:2], parked=True)
    seen = see(bench, "acme")
    assert (seen.in_flight, seen.due, seen.parked) == (1, 3, 2)
    assert seen.oldest_due_at == min(bench.see(one).visible_after for one in others[2:])
    assert (seen.state, seen.placement, seen.nodes) == (NamespaceState.ACTIVE, PlacementKind.UNPLACED, ())
    assert [one.namespace for one in bench.store.governing.namespaces(None)] == ["acme", "default"]
    assert bench.store.governing.namespaces(None, "nothing") == []


def test_what_is_set_of_a_namespace_leaves_the_rest_as_it_is(bench: Bench) -> None:
    govern = bench.store.governing
    assert not govern.set_namespace("acme", create=False, max_in_flight=5)
    assert govern.names() == ["default"]
    assert govern.set_namespace("acme", create=True, max_in_flight=5)
    assert govern.set_namespace("acme", create=False, placement=PlacementKind.PINNED, nodes=["n2", "n1"])
    assert govern.set_namespace("acme", create=True)
    seen = see(bench, "acme", default=7)
    assert (seen.quota, seen.placement, seen.nodes) == (5, PlacementKind.PINNED, ("n2", "n1"))
    govern.set_namespace("acme", create=True, max_in_flight=UNLIMITED)
    assert see(bench, "acme", default=7).quota is None
    govern.set_namespace("acme", create=True, max_in_flight=None)
    assert see(bench, "acme", default=7).quota == 7
    assert see(bench, "acme").quota is None


def test_namespaces_at_their_quota_are_those_with_rows_that_wait_for_it(bench: Bench) -> None:
    for name in ("acme", "globex", "initech"):
        bench.stage(2, name)
    rows = bench.claim(6)
    by_name = {row.namespace: row for row in rows}
    bench.store.release([by_name["acme"].claim, by_name["initech"].claim])
    govern = bench.store.governing
    assert govern.limited(None) == []
    for name in ("acme", "globex"):
        govern.set_namespace(name, create=False, max_in_flight=1)
    assert [one.namespace for one in govern.limited(None) if one.at_quota] == ["acme"]
    assert [one.namespace for one in govern.limited(1) if one.at_quota] == ["acme", "initech"]


def test_namespaces_that_wait_for_a_node_are_those_with_rows_and_no_live_one(bench: Bench) -> None:
    govern = bench.store.governing
    bench.stage(1, "acme")
    bench.set(bench.stage(1, "globex")[0].row_id, parked=True)
    bench.stage(1, "initech", delay=HOUR)
    for name in ("acme", "globex", "initech"):
        govern.set_namespace(name, create=False, placement=PlacementKind.PINNED, nodes=["n1", "n2"])
    waits = {one.namespace for one in govern.limited(None) if one.waits_for_node({None, "n3"})}
    assert waits == {"acme", "globex"}
    assert not any(one.waits_for_node({"n2"}) for one in govern.limited(None))


def test_a_deprecated_namespace_takes_no_row_and_finishes_those_that_it_has(bench: Bench) -> None:
    bench.stage(2, "acme")
    bench.store.governing.set_namespace("acme", create=False, state=NamespaceState.DEPRECATED)
    many = [new_row("default row"), *(new_row(str(number), "acme") for number in range(1_500))]
    for open_namespaces in (True, False):
        for rows in (many, [new_row("one", "acme")]):
            with bench.engine.begin() as connection, pytest.raises(StagingError, match="'acme' is deprecated"):
                insert_rows(connection, bench.tables, rows, wake=False, open_namespaces=open_namespaces)
    assert len(bench.store.ls(limit=5_000)) == 2  # whoever catches the error may commit
    bench.settle(*(done(row) for row in bench.claim()))
    assert set(bench.statuses().values()) == {"done"}
    bench.store.governing.set_namespace("acme", create=True, state=NamespaceState.ACTIVE)
    assert bench.stage(1, "acme")[0].created


def test_a_row_that_a_deprecated_namespace_has_already_is_not_a_new_one(bench: Bench) -> None:
    (first,) = bench.insert([new_row("k", "acme")])
    bench.store.governing.set_namespace("acme", create=False, state=NamespaceState.DEPRECATED)
    if bench.dialect == "postgresql":
        (again,) = bench.insert([new_row("k", "acme")])
        assert (again.row_id, again.created) == (first.row_id, False)


def test_when_rows_were_last_seen_is_written_seldom(bench: Bench) -> None:
    govern = bench.store.governing
    bench.stage(1, "acme")
    assert see(bench, "acme").last_seen_at is None
    govern.seen(["acme", "nothing"], MINUTE)
    first = see(bench, "acme").last_seen_at
    assert first is not None
    govern.seen(["acme"], MINUTE)
    assert see(bench, "acme").last_seen_at == first
    govern.seen(["acme"], timedelta(seconds=-1))
    assert (see(bench, "acme").last_seen_at or first) >= first
    with Statements(bench.engine) as statements:
        bench.stage(3, "acme")
    assert not any("UPDATE" in one for one in statements.seen)


def test_claims_are_noted_and_strangers_looked_for_only_when_it_is_time(bench: Bench) -> None:
    bench.stage(2, "acme")
    assert len(bench.claim()) == 2
    with Statements(bench.engine) as statements:
        assert bench.store.tend_namespaces() == []
        first = len(statements.seen)
        assert bench.store.tend_namespaces() == []
    assert first == len(statements.seen) == 2
    assert see(bench, "acme").last_seen_at is not None


# -- who registers a namespace -------------------------------------------------------------------------------------


def test_first_users_of_a_namespace_do_not_wait_for_each_other(postgres_bench: Bench) -> None:
    """Neither for a long transaction, nor, with two names in another order, for ever."""
    bench = postgres_bench

    def stage(connection: sa.Connection, name: str) -> None:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        insert_rows(connection, bench.tables, [new_row(str(id(connection)), name)], wake=False, open_namespaces=True)

    with bench.engine.connect() as one, bench.engine.connect() as other:
        first, second = one.begin(), other.begin()
        stage(one, "acme")
        stage(other, "globex")
        stage(one, "globex")
        stage(other, "acme")
        second.commit()
        first.commit()
    assert bench.store.governing.names() == ["acme", "default", "globex"]
    assert len(bench.claim()) == 4


def test_a_namespace_whose_first_user_rolled_back_is_registered_by_a_relay(postgres_bench: Bench) -> None:
    bench = postgres_bench
    with bench.engine.connect() as one, bench.engine.connect() as other:
        first, second = one.begin(), other.begin()
        insert_rows(one, bench.tables, [new_row("a", "acme")], wake=False, open_namespaces=True)
        insert_rows(other, bench.tables, [new_row("b", "acme")], wake=False, open_namespaces=True)
        second.commit()
        assert bench.store.governing.register_strangers() == []  # left to the one that is about to
        first.rollback()
    assert bench.store.governing.names() == ["default"]
    assert bench.store.governing.register_strangers() == ["acme"]
    assert bench.store.governing.register_strangers() == []
    assert len(bench.claim()) == 1


def test_rows_do_not_wait_for_a_long_transaction_that_registers_their_namespace(postgres_bench: Bench) -> None:
    bench = postgres_bench
    bench.stage(1, "globex")
    with bench.engine.connect() as slow:
        first = slow.begin()
        insert_rows(slow, bench.tables, [new_row("slow", "acme")], wake=False, open_namespaces=True)
        bench.insert([new_row("quick", "acme")])
        assert [row.namespace for row in bench.claim()] == ["globex"]
        assert bench.store.tend_namespaces() == []
        assert [row.namespace for row in bench.claim()] == ["acme"]
        bench.insert([new_row("next", "acme")])
        assert len(bench.claim()) == 1
        first.commit()
    assert len(bench.claim()) == 1
    bench.store.governing._look_at = 0.0
    bench.store.tend_namespaces()
    assert bench.store.governing.waiting == frozenset()


def test_strangers_are_looked_for_once_an_interval(bench: Bench) -> None:
    now = [1_000.0]
    govern = Governing(bench.store.governing._db, timedelta(seconds=15), clock=lambda: now[0])
    with Statements(bench.engine) as statements:
        for _ in range(46):
            govern.tend()
            now[0] += 1
    assert len(statements.seen) == 4


def test_strangers_are_found_without_reading_rows_of_known_namespaces(postgres_bench: Bench) -> None:
    bench = postgres_bench
    bench.stage(2_000, "acme")
    bench.stage(500, "globex")
    bench.stage(1, "zeta")
    with bench.engine.begin() as connection:
        connection.execute(sa.delete(bench.tables.namespace).where(bench.tables.namespace.c.namespace == "zeta"))
        connection.exec_driver_sql("ANALYZE outbox_row")
    with Statements(bench.engine) as statements:
        assert bench.store.governing.register_strangers() == ["zeta"]
    assert len(statements.seen) == 2


def test_a_known_namespace_costs_no_lock(postgres_bench: Bench) -> None:
    bench = postgres_bench
    bench.stage(1, "acme")
    with bench.engine.begin() as connection:
        insert_rows(connection, bench.tables, [new_row("k", "acme")], wake=False, open_namespaces=True)
        locks = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).scalar_one()
    assert locks == 0


# -- holds ---------------------------------------------------------------------------------------------------------


def test_a_hold_stays_as_old_as_it_is_and_keeps_its_reason(bench: Bench) -> None:
    govern = bench.store.governing
    govern.pause(Scope.NAMESPACE, "acme", "moving")
    (first,) = govern.holds()
    govern.pause(Scope.NAMESPACE, "acme")
    assert govern.holds() == [first]
    govern.pause(Scope.NAMESPACE, "acme", "still moving")
    govern.pause(Scope.TASK, "acme")
    assert [(one.scope, one.value, one.reason) for one in govern.holds()] == [
        (Scope.NAMESPACE, "acme", "still moving"),
        (Scope.TASK, "acme", None),
    ]
    assert govern.resume(Scope.WORKFLOW, "acme") is None
    assert govern.resume(Scope.NAMESPACE, "acme") == 0
    assert [one.scope for one in govern.holds()] == [Scope.TASK]


def test_a_hold_tells_how_many_rows_it_keeps_and_resume_lets_them_go(bench: Bench) -> None:
    govern = bench.store.governing
    mine = bench.stage(4, "acme", workflow_id="w")
    (other,) = bench.stage(1, workflow_id="w", task="shop.mail")
    for scope, value in ((Scope.NAMESPACE, "acme"), (Scope.WORKFLOW, "w"), (Scope.TASK, "shop.mail")):
        govern.pause(scope, value)
    bench.set([one.row_id for one in (*mine[:3], other)], parked=True)
    assert {one.scope: one.parked for one in govern.holds()} == {
        Scope.NAMESPACE: 3,
        Scope.WORKFLOW: 4,
        Scope.TASK: 1,
    }
    kept = govern.kept(bench.see(other.row_id), None, namespace_queues=True)
    assert [one.scope for one in kept.holds] == [Scope.WORKFLOW, Scope.TASK]
    assert govern.resume(Scope.TASK, "shop.mail") == 1
    assert not bench.see(other.row_id).parked
    assert govern.resume(Scope.WORKFLOW, "w") == 3
    assert govern.resume(Scope.NAMESPACE, "acme") == 0


def test_a_resume_that_broke_off_is_finished_by_the_next(bench: Bench) -> None:
    staged = bench.stage(2, "acme")
    bench.set([one.row_id for one in staged], parked=True)
    assert bench.store.governing.resume(Scope.NAMESPACE, "acme") is None
    assert not any(bench.see(one.row_id).parked for one in staged)


def test_resume_waits_for_whoever_parks_rows_because_of_the_hold(postgres_bench: Bench) -> None:
    bench = postgres_bench
    (staged,) = bench.stage(1, "acme")
    bench.store.governing.pause(Scope.NAMESPACE, "acme")
    hold = bench.tables.hold
    with ThreadPoolExecutor(1) as pool, bench.engine.connect() as parker:
        with parker.begin():
            parker.execute(sa.select(hold).with_for_update(read=True)).all()
            parker.execute(sa.update(bench.tables.row).values(parked=True))
            resumed = pool.submit(bench.store.governing.resume, Scope.NAMESPACE, "acme")
            with pytest.raises(TimeoutError):
                resumed.result(timeout=0.3)
        assert resumed.result(timeout=10) == 1
    assert not bench.see(staged.row_id).parked


def test_a_rows_place_in_line_is_told(bench: Bench) -> None:
    first = bench.stage(3, "acme")
    bench.stage(2)
    bench.stage(1, "globex")
    bench.stage(1, "initech", delay=HOUR)
    last = bench.stage(1, "acme")[0]
    kept = bench.store.governing.kept(bench.see(last.row_id), 5, namespace_queues=False)
    assert (kept.ahead, kept.others, kept.namespace_queues) == (3, 2, False)
    assert kept.namespace is not None
    assert (kept.namespace.due, kept.namespace.quota) == (4, 5)
    assert bench.store.governing.kept(bench.see(first[0].row_id), 5, namespace_queues=True).ahead == 0


# -- workflows -----------------------------------------------------------------------------------------------------


def test_a_workflow_is_seen_by_its_states_runs_and_failures(bench: Bench) -> None:
    assert bench.store.governing.workflow("w") is None
    bench.stage(3, workflow_id="w", run_id="r1")
    bench.stage(2, workflow_id="w", run_id="r2", delay=HOUR)
    bench.stage(1, workflow_id="v")
    rows = [row for row in bench.claim() if bench.see(row.id).workflow_id == "w"]
    bench.settle(failed(rows[0]), done(rows[1]))
    bench.store.governing.pause(Scope.WORKFLOW, "w")
    seen = bench.store.governing.workflow("w")
    assert seen is not None
    assert (seen.total, seen.held, seen.parked) == (5, True, 0)
    assert {name: rows for name, rows in seen.counts.items() if rows} == {
        "pending": 2,
        "claimed": 1,
        "done": 1,
        "failed": 1,
    }
    assert (list(seen.run_ids), list(seen.failed)) == (["r2", "r1"], [rows[0].id])
    assert seen.created_at <= (seen.oldest_pending_at or seen.created_at)
    assert seen.last_settled_at is not None


def test_cancelling_an_owner_ends_what_is_parked_and_resume_does_not_bring_it_back(bench: Bench) -> None:
    staged = bench.stage(3, workflow_id="w")
    bench.store.governing.pause(Scope.WORKFLOW, "w")
    bench.set(staged[0].row_id, parked=True)
    assert len(bench.store.cancel(RowFilter(workflow_id="w"))) == 3
    bench.store.governing.resume(Scope.WORKFLOW, "w")
    bench.store.reset_watermark()
    assert bench.claim() == []
    assert set(bench.statuses().values()) == {"cancelled"}
