"""PostgreSQL's plans on a table that is mostly done rows: what is asked often reads an index of what is in flight."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_relay.core.namespaces import PlacementKind, Scope
from outbox_relay.core.planning import ALWAYS
from outbox_relay.store.sql import values
from outbox_relay.store.statements import claiming, governing, operating, parking, publishing, rearming, settling
from tests.store.bench import Bench, Statements, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Postgres

PG = "postgresql"


@pytest.fixture(scope="module")
def full(postgres: Postgres) -> Iterator[Bench]:
    """60,000 done, 5,000 delayed, 5,000 parked, 3,000 due, 2,000 claimed, 500 failed rows of 20 namespaces."""
    if postgres.owned:
        postgres.start()
    name = postgres.create_database()
    bench = Bench(postgres.url(name))
    copy = """
        INSERT INTO outbox_row (namespace, dispatch_key, content_hash, task_queue, exchange, routing_key, task, task_id,
            body, content_type, content_encoding, headers, properties, status, parked, visible_after, claim_token,
            claimed_at, lease_until, settled_at, created_at)
        SELECT 'ns' || mod(n, 20), '{kind}' || n, '\\x00', 'celery', '', 'celery', 't', 'id-{kind}' || n,
            decode(repeat('ab', 100), 'hex'), 'json', 'utf-8', '{{}}', '{{}}', '{status}', {parked},
            now() + interval '{due}', {token}, {claimed}, {claimed} + interval '1 hour', {settled}, now()
        FROM generate_series(1, {count}) AS n
    """
    kinds: list[dict[str, Any]] = [
        {"kind": "done", "status": "done", "count": 60_000, "settled": "now() - interval '1 hour'"},
        {"kind": "delayed", "status": "pending", "count": 5_000, "due": "1 day"},
        {"kind": "parked", "status": "pending", "count": 5_000, "parked": "true"},
        {"kind": "due", "status": "pending", "count": 3_000},
        {"kind": "claimed", "status": "claimed", "count": 2_000, "token": "gen_random_uuid()", "claimed": "now()"},
        {"kind": "failed", "status": "failed", "count": 500, "settled": "now()"},
    ]
    usual = {"parked": "false", "due": "-1 minute", "token": "NULL", "claimed": "NULL::timestamptz", "settled": "NULL"}
    with bench.engine.begin() as connection:
        for kind in kinds:
            connection.exec_driver_sql(copy.format(**{**usual, **kind}))
        connection.exec_driver_sql(
            "INSERT INTO outbox_namespace (namespace, created_at) "
            "SELECT 'ns' || n, now() FROM generate_series(0, 19) AS n"
        )
        connection.exec_driver_sql("ANALYZE outbox_row")
    yield bench
    bench.close()
    postgres.drop_database(name)


def plan_of(bench: Bench, statement: Any, parameters: dict[str, Any]) -> str:
    compiled = statement.compile(dialect=bench.engine.dialect)
    with bench.engine.connect() as connection, connection.begin() as transaction:
        cursor = connection.connection.cursor()
        cursor.execute("EXPLAIN (COSTS OFF) " + str(compiled), {**compiled.params, **parameters})
        plan = "\n".join(row[0] for row in cursor.fetchall())
        transaction.rollback()
    return plan


TAKING = {"by": uuid.uuid4(), "lease": 30.0, "max_bytes": 10**9}


def test_a_claim_reads_the_due_index(full: Bench) -> None:
    plan = plan_of(full, claiming.claim_all(full.tables), {"limit": 500, "since": ALWAYS, **TAKING})
    assert "outbox_row_due" in plan
    assert "Seq Scan on outbox_row" not in plan


def test_a_fair_claim_reads_the_due_index_of_each_namespace(full: Bench) -> None:
    names = [f"ns{number}" for number in range(20)]
    given = values(PG, "plan", namespace=names, share=[25] * 20, since=[ALWAYS] * 20)
    plan = plan_of(full, claiming.claim_shares(full.tables, PG), {**given, **TAKING})
    assert "outbox_row_namespace_due" in plan
    assert "Seq Scan on outbox_row" not in plan
    given = values(PG, "marks", namespace=names[:2], since=[ALWAYS] * 2)
    plan = plan_of(full, claiming.due_namespaces(full.tables, PG), {"limit": 500, "turn": "", "since": ALWAYS, **given})
    assert "outbox_row_namespace_due" in plan
    assert "Seq Scan on outbox_row" not in plan


def test_fenced_writes_go_by_the_primary_key(full: Bench) -> None:
    claims = values(PG, "claims", id=list(range(500)), token=[uuid.uuid4()] * 500)
    for statement in (publishing.release, publishing.expire):
        plan = plan_of(full, statement(full.tables, PG), {**claims, "reason": "x"})
        assert "outbox_row_pkey" in plan
        assert "outbox_row_claimed" not in plan
    ids = values(PG, "ids", id=list(range(500)))
    plan = plan_of(full, settling.lock_states(full.tables, PG), {**ids, "life": 0.0})
    assert "outbox_row_pkey" in plan
    plan = plan_of(full, settling.settle_done(full.tables, PG), {**ids, "ids_note": [None] * 500})
    assert "outbox_row_pkey" in plan


def test_stale_claims_are_looked_for_among_the_claimed(full: Bench) -> None:
    plan = plan_of(full, rearming.stale(full.tables, True), {"limit": 100, "since": ALWAYS})
    assert "outbox_row_claimed" in plan
    assert "Seq Scan on outbox_row" not in plan


def test_what_an_operator_asks_reads_no_more_than_it_must(full: Bench) -> None:
    asked = {
        "outbox_row_due": operating.list_rows(full.tables, "pending", frozenset()),
        "outbox_row_failed": operating.list_rows(full.tables, "failed", frozenset()),
        "outbox_row_pkey": operating.list_rows(full.tables, None, frozenset()),
        "outbox_row_dispatch_key": operating.rows_by_key(full.tables),
        "outbox_row_claimed": operating.rows_in_flight_by_task_id(full.tables),
        "outbox_row_settled": operating.prune(full.tables, PG, "done"),
    }
    for index, statement in asked.items():
        plan = plan_of(full, statement, {"limit": 50, "key": "done7", "age": 60.0})
        assert index in plan
        assert "Seq Scan on outbox_row" not in plan


def test_namespaces_that_nobody_registered_are_found_by_steps_through_an_index(full: Bench) -> None:
    plan = plan_of(full, governing.stranger_names(full.tables), {})
    assert "Index Only Scan using outbox_row_namespace_due" in plan
    assert "Seq Scan on outbox_row" not in plan


def test_a_workflow_is_read_by_its_index(full: Bench) -> None:
    for statement in (governing.workflow, governing.workflow_runs, governing.workflow_failed):
        plan = plan_of(full, statement(full.tables), {"name": "w"})
        assert "outbox_row_workflow" in plan
        assert "Seq Scan on outbox_row" not in plan


def test_rows_are_counted_by_their_indexes(full: Bench) -> None:
    with full.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # it is a choice that the size of the table makes
        compiled = operating.counts(full.tables).compile(dialect=full.engine.dialect)
        cursor = connection.connection.cursor()
        cursor.execute("EXPLAIN (COSTS OFF) " + str(compiled), compiled.params)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Seq Scan on outbox_row" not in plan
    counts = full.store.counts()  # other tests here claim and park
    assert counts["pending"] == counts["due"] + counts["delayed"] + counts["parked"]
    assert (counts["pending"] + counts["claimed"], counts["done"], counts["failed"]) == (15_000, 60_000, 500)


NARROW = claiming.Narrow(guarded=True, sharded=True)
SAID: dict[str, Any] = {
    **values(PG, "workflows", value=[f"w{number}" for number in range(100)]),
    **values(PG, "tasks", value=["t2"]),
    **values(PG, "pinned", value=["ns3"]),
    **values(PG, "openings", value=["ns3 :celery"]),
    **values(PG, "closed", value=["ns4"]),
    **values(PG, "unreadable", value=[]),
    "shards": 64,
    "first_shard": 0,
    "last_shard": 15,
}


def generic_plan_of(bench: Bench, statement: Any, parameters: dict[str, Any]) -> str:
    """The plan that a prepared statement ends up with when PostgreSQL stops planning for each set of parameters."""
    compiled = statement.compile(dialect=bench.engine.dialect)
    with bench.engine.connect() as connection:
        cursor = connection.connection.cursor()
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        cursor.execute("EXPLAIN (COSTS OFF) " + str(compiled), {**compiled.params, **parameters}, prepare=True)
        plan = "\n".join(row[0] for row in cursor.fetchall())
        connection.connection.rollback()
        cursor.execute("RESET plan_cache_mode")
    return plan


def test_what_is_said_about_namespaces_does_not_take_a_claim_off_its_index(full: Bench) -> None:
    names = [f"ns{number}" for number in range(20)]
    given = {
        **values(PG, "plan", namespace=names, share=[25] * 20, since=[ALWAYS] * 20),
        **values(PG, "marks", namespace=names[:2], since=[ALWAYS] * 2),
        "limit": 500,
        "turn": "",
        "since": ALWAYS,
        **TAKING,
        **SAID,
    }
    for statement in (claiming.due_namespaces, claiming.claim_shares):
        for plan in (plan_of, generic_plan_of):
            found = plan(full, statement(full.tables, PG, NARROW), given)
            assert "outbox_row_namespace_due" in found
            assert "Seq Scan on outbox_row" not in found


def test_claimed_rows_are_counted_by_their_index(full: Bench) -> None:
    plan = plan_of(full, claiming.claimed_rows(full.tables), {"since": ALWAYS})
    assert "outbox_row_claimed" in plan
    assert "Seq Scan on outbox_row" not in plan


def test_what_is_kept_back_is_found_at_the_heads_of_namespaces_and_brought_back_from_the_parked(full: Bench) -> None:
    given = {"turn": "", "depth": 2_000, "limit": 5_000, "after": 0, "last": 10**9, "value": "w1", **SAID}
    plan = plan_of(full, parking.park(full.tables, PG), given)
    assert "outbox_row_namespace_due" in plan
    assert "Seq Scan on outbox_row" not in plan
    statements = {
        parking.parked_page(full.tables): "outbox_row_parked",
        parking.reconcile(full.tables, PG): "outbox_row_parked",
        parking.unpark(full.tables, PG, Scope.NAMESPACE): "outbox_row_parked",
        parking.unpark(full.tables, PG, Scope.TASK): "outbox_row_parked",
        parking.unpark(full.tables, PG, Scope.WORKFLOW): "outbox_row_workflow",
    }
    for statement, index in statements.items():
        plan = plan_of(full, statement, given)
        assert index in plan
        assert "Seq Scan on outbox_row" not in plan


def test_a_sweep_takes_the_same_statements_for_any_number_of_namespaces(full: Bench) -> None:
    """All there is at once: a quota for everybody, holds of every kind, a pinned namespace."""
    governing = full.store.governing
    relay = full.another(default_quota=1_000)
    for scope, value in ((Scope.NAMESPACE, "ns4"), (Scope.WORKFLOW, "w1"), (Scope.TASK, "t2")):
        governing.pause(scope, value)
    governing.set_namespace("ns3", create=False, placement=PlacementKind.PINNED, nodes=("n1",))
    try:
        assert not relay.tidy(timedelta(seconds=30))
        relay.claim(limit=1, claimed_by=full.me, lease=timedelta(seconds=30))
        with Statements(relay.engine) as statements:
            relay.tidy(timedelta(seconds=1))
            batch = relay.claim(limit=40, claimed_by=full.me, lease=timedelta(seconds=30))
        assert len(spread(batch)) == 18
        assert len(statements.seen) <= 8
        relay.release([row.claim for row in batch])
    finally:
        for scope, value in ((Scope.NAMESPACE, "ns4"), (Scope.WORKFLOW, "w1"), (Scope.TASK, "t2")):
            governing.resume(scope, value)
        governing.set_namespace("ns3", create=False, placement=PlacementKind.UNPLACED, nodes=())


def test_a_claim_still_finds_the_index_after_many_idle_looks(full: Bench) -> None:
    """A prepared statement becomes a generic plan after some executions: it has to stay with the index."""
    for _ in range(12):
        full.claim(1, timedelta(seconds=30))
    with full.engine.connect() as connection:
        cursor = connection.connection.cursor()
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        compiled = claiming.claim_all(full.tables).compile(dialect=full.engine.dialect)
        parameters = {**compiled.params, "limit": 500, "since": ALWAYS, **TAKING}
        cursor.execute("EXPLAIN (COSTS OFF) " + str(compiled), parameters, prepare=True)
        plan = "\n".join(row[0] for row in cursor.fetchall())
        connection.connection.rollback()
        cursor.execute("RESET plan_cache_mode")
    assert "outbox_row_due" in plan
