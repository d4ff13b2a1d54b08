"""Rows staged in the caller's transaction: any number, one row a key, due when they should be."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.core.row import Staged
from outbox_relay.errors import DispatchKeyConflict, StagingError, StoreError
from outbox_relay.store.engine import open_engine
from outbox_relay.store.schema import build
from outbox_relay.store.staging import insert_rows
from tests.store.bench import HASH, HOUR, Statements, new_row

if TYPE_CHECKING:
    from tests.store.bench import Bench


def count(bench: Bench) -> int:
    with bench.engine.begin() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(bench.tables.row)).scalar_one())


def test_every_column_is_stored_as_it_was_given(bench: Bench) -> None:
    expires_at = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc)
    row = new_row(
        "k",
        "acme",
        workflow_id="w",
        run_id="r",
        ordinal=7,
        node="box-7",
        retries=2,
        max_attempts=4,
        settle_on="publish",
        expires_at=expires_at,
        task="a.b",
        task_queue="q",
        exchange="x",
        routing_key="rk",
        body=b"\x00\xff",
    )
    (staged,) = bench.insert([row])
    assert staged == Staged(row_id=staged.row_id, task_id="id-acme-k", dispatch_key="k", created=True)
    seen = bench.see(staged.row_id)
    assert (seen.namespace, seen.dispatch_key, seen.workflow_id, seen.run_id, seen.ordinal) == (
        "acme",
        "k",
        "w",
        "r",
        7,
    )
    assert (seen.node, seen.retries, seen.max_attempts, seen.settle_on) == ("box-7", 2, 4, "publish")
    assert (seen.task, seen.task_queue, seen.exchange, seen.routing_key) == ("a.b", "q", "x", "rk")
    assert seen.expires_at == expires_at
    assert bench.column(staged.row_id, "body") == b"\x00\xff"
    assert bench.column(staged.row_id, "content_hash") == HASH
    assert (seen.attempt, seen.failures, seen.rearms, seen.parked, seen.due) == (0, 0, 0, False, True)


@pytest.mark.parametrize("rows", [1, 2, 50])
def test_a_row_is_due_by_the_databases_clock(bench: Bench, rows: int) -> None:
    before = bench.store.now()
    plain = bench.stage(rows)[0]
    delayed = bench.stage(rows, delay=HOUR)[0]
    at = before + timedelta(minutes=5)
    fixed = bench.stage(rows, visible_after=at)[0]
    past = bench.stage(rows, visible_after=before - HOUR)[0]
    after = bench.store.now()
    assert before <= bench.see(plain.row_id).visible_after <= after
    assert before + HOUR <= bench.see(delayed.row_id).visible_after <= after + HOUR
    assert abs(bench.see(fixed.row_id).visible_after - at) < timedelta(milliseconds=1)
    assert before <= bench.see(past.row_id).visible_after <= after


@pytest.mark.parametrize("rows", [1, 2, 999, 1_000, 1_001, 2_500])
def test_any_number_of_rows_comes_back_in_the_order_given(bench: Bench, rows: int) -> None:
    given = [new_row(str(uuid.uuid4())) for _ in range(rows)]
    staged = bench.insert(given)
    assert [one.dispatch_key for one in staged] == [row.dispatch_key for row in given]
    assert all(one.created for one in staged)
    assert len({one.row_id for one in staged}) == count(bench) == rows


def test_twenty_thousand_rows_at_once(bench: Bench) -> None:
    staged = bench.stage(20_000)
    assert len({one.row_id for one in staged}) == count(bench) == 20_000


def test_none_of_twenty_thousand_rows_stays_when_the_transaction_rolls_back(bench: Bench) -> None:
    with bench.engine.connect() as connection, connection.begin() as transaction:
        rows = [new_row(str(number)) for number in range(20_000)]
        insert_rows(connection, bench.tables, rows, wake=True, open_namespaces=True)
        transaction.rollback()
    assert count(bench) == 0


def test_a_savepoint_that_is_rolled_back_takes_its_rows_along(bench: Bench) -> None:
    with bench.engine.begin() as connection:
        insert_rows(connection, bench.tables, [new_row("kept")], wake=True, open_namespaces=True)
        savepoint = connection.begin_nested()
        insert_rows(connection, bench.tables, [new_row("gone", "acme")], wake=True, open_namespaces=True)
        savepoint.rollback()
    assert [row.dispatch_key for row in bench.store.ls()] == ["kept"]


def test_a_savepoint_that_is_released_is_undone_by_the_outer_rollback(bench: Bench) -> None:
    with bench.engine.connect() as connection, connection.begin() as transaction:
        with connection.begin_nested():
            insert_rows(connection, bench.tables, [new_row("gone")], wake=True, open_namespaces=True)
        transaction.rollback()
    assert count(bench) == 0


def test_500_rows_are_one_statement(bench: Bench) -> None:
    with Statements(bench.engine) as statements:
        bench.stage(500)
    assert len(statements.seen) == 1


def test_one_row_of_a_new_namespace_is_one_statement_on_postgresql(postgres_bench: Bench) -> None:
    with Statements(postgres_bench.engine) as statements:
        postgres_bench.stage(1, "acme")
    assert len(statements.seen) == 1


# -- keys ----------------------------------------------------------------------------------------------------------


def test_the_same_key_with_the_same_content_returns_the_first_row(bench: Bench) -> None:
    (first,) = bench.insert([new_row("k", task_id="first")])
    (second,) = bench.insert([new_row("k", task_id="second")])
    assert second == Staged(row_id=first.row_id, task_id="first", dispatch_key="k", created=False)
    assert count(bench) == 1


def test_the_same_key_in_another_namespace_is_another_row(bench: Bench) -> None:
    bench.insert([new_row("k"), new_row("k", "acme"), new_row("K", "acme"), new_row("k ", "acme")])
    assert count(bench) == 4


def test_the_same_key_twice_in_one_call_is_one_row(bench: Bench) -> None:
    first, other, second = bench.insert([new_row("k", task_id="a"), new_row("j"), new_row("k", task_id="b")])
    assert (first.created, other.created, second.created) == (True, True, False)
    assert second.row_id == first.row_id
    assert second.task_id == "a"
    assert count(bench) == 2


def test_a_key_that_is_taken_by_other_content_is_refused_and_nothing_of_the_call_stays(bench: Bench) -> None:
    bench.insert([new_row("k")])
    with bench.engine.begin() as connection:
        rows = [new_row("a"), new_row("k", content_hash=b"\x02" * 16), new_row("z")]
        with pytest.raises(DispatchKeyConflict, match="'k'"):
            insert_rows(connection, bench.tables, rows, wake=True, open_namespaces=True)
        insert_rows(connection, bench.tables, [new_row("after")], wake=True, open_namespaces=True)
    assert {row.dispatch_key for row in bench.store.ls()} == {"k", "after"}


def test_a_key_with_two_contents_in_one_call_is_refused_before_anything_is_written(bench: Bench) -> None:
    with bench.engine.begin() as connection, Statements(bench.engine) as statements:
        rows = [new_row("k"), new_row("k", content_hash=b"\x02" * 16)]
        with pytest.raises(DispatchKeyConflict):
            insert_rows(connection, bench.tables, rows, wake=True, open_namespaces=True)
        assert statements.seen == []


def test_many_taken_keys_are_found_in_one_look(bench: Bench) -> None:
    rows = [new_row(str(number)) for number in range(400)]
    first = bench.insert(rows[::2])
    with Statements(bench.engine) as statements:
        second = bench.insert(rows)
    assert len(statements.seen) == 2
    assert sum(one.created for one in second) == 200
    assert [one.row_id for one in second[::2]] == [one.row_id for one in first]


def test_twenty_stagers_of_one_key_at_once_make_one_row(bench: Bench) -> None:
    start = threading.Barrier(20)
    engine = open_engine(bench.url) if bench.dialect == "sqlite" else sa.create_engine(bench.url, pool_size=20)

    def stage(number: int) -> Staged:
        start.wait(30)
        with engine.begin() as connection:
            row = new_row("k", task_id=f"task-{number}")
            (staged,) = insert_rows(connection, bench.tables, [row], wake=True, open_namespaces=True)
            return staged

    with ThreadPoolExecutor(20) as pool:
        staged = list(pool.map(stage, range(20)))
    engine.dispose()
    assert count(bench) == 1
    assert sum(one.created for one in staged) == 1
    assert len({(one.row_id, one.task_id) for one in staged}) == 1


def test_bulk_stagers_of_the_same_keys_in_opposite_order_do_not_deadlock(bench: Bench) -> None:
    rows = [new_row(f"{number:03}", f"ns{number % 3}") for number in range(200)]
    start = threading.Barrier(2)

    def stage(mine: list[object]) -> int:
        engine = open_engine(bench.url)
        start.wait(30)
        with engine.begin() as connection:
            staged = insert_rows(connection, bench.tables, mine, wake=True, open_namespaces=True)  # type: ignore[arg-type]
        engine.dispose()
        return sum(one.created for one in staged)

    with ThreadPoolExecutor(2) as pool:
        created = list(pool.map(stage, [rows, rows[::-1]]))
    assert sum(created) == count(bench) == 200


def test_a_key_of_a_transaction_that_rolls_back_is_free_again(postgres_bench: Bench) -> None:
    bench = postgres_bench
    with bench.engine.connect() as first:
        transaction = first.begin()
        insert_rows(first, bench.tables, [new_row("k", task_id="gone")], wake=False, open_namespaces=True)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(bench.insert, [new_row("k", task_id="kept")])
            transaction.rollback()
            (staged,) = waiting.result(30)
    assert (staged.created, staged.task_id) == (True, "kept")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_row_that_a_transaction_cannot_see_is_an_error_not_a_lost_task(postgres_bench: Bench, level: str) -> None:
    bench = postgres_bench
    engine = sa.create_engine(bench.url, isolation_level=level)
    with engine.connect() as connection, connection.begin():
        connection.execute(sa.text("SELECT count(*) FROM outbox_row"))
        bench.insert([new_row("k")])
        with pytest.raises(StagingError, match="cannot see") as caught:
            insert_rows(connection, bench.tables, [new_row("k")], wake=False, open_namespaces=True)
        assert isinstance(caught.value, sa.exc.OperationalError)  # what retries of whole transactions look for
        assert caught.value.orig.sqlstate == "40001"  # type: ignore[union-attr]
    engine.dispose()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_row_that_a_transaction_can_see_is_the_first_row_at_any_level(postgres_bench: Bench, level: str) -> None:
    bench = postgres_bench
    (first,) = bench.insert([new_row("k")])
    engine = sa.create_engine(bench.url, isolation_level=level)
    with engine.begin() as connection:
        (again,) = insert_rows(connection, bench.tables, [new_row("k")], wake=False, open_namespaces=True)
    engine.dispose()
    assert (again.row_id, again.created) == (first.row_id, False)


@pytest.mark.parametrize("watched", [False, True], ids=["on the driver's cursor", "with a tracer"])
def test_a_connection_that_is_lost_while_it_stages_is_known_to_be_lost(postgres_bench: Bench, watched: bool) -> None:
    bench = postgres_bench
    engine = sa.create_engine(bench.url)
    if watched:
        sa.event.listen(engine, "before_cursor_execute", lambda *_: None)
    with engine.connect() as connection:
        process_id = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        with bench.engine.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": process_id})
        with pytest.raises(sa.exc.OperationalError) as caught:
            insert_rows(connection, bench.tables, [new_row("k")], wake=False, open_namespaces=True)
        assert caught.value.connection_invalidated
        assert connection.invalidated
    with engine.begin() as connection:  # the pool has dropped it
        insert_rows(connection, bench.tables, [new_row("k")], wake=False, open_namespaces=True)
    engine.dispose()
    assert count(bench) == 1


# -- namespaces and tables -----------------------------------------------------------------------------------------


def test_a_namespace_is_registered_at_its_first_use(bench: Bench) -> None:
    bench.insert([new_row("a", "acme"), new_row("b", "globex")])
    bench.stage(1, "acme")
    with bench.engine.begin() as connection:
        names = connection.execute(sa.select(bench.tables.namespace.c.namespace)).scalars().all()
    assert sorted(names) == ["acme", "default", "globex"]


@pytest.mark.parametrize("rows", [1, 3])
def test_an_unknown_namespace_is_refused_where_they_are_closed(bench: Bench, rows: int) -> None:
    bench.stage(1, "acme")
    given = [new_row(f"k{number}", "acme") for number in range(rows)]
    bench.insert(given, open_namespaces=False)
    bench.insert([new_row("plain")], open_namespaces=False)
    with pytest.raises(StagingError, match="'globex' is not known"):
        bench.insert([new_row("k", "globex"), *given], open_namespaces=False)
    assert count(bench) == rows + 2


def test_staging_without_tables_says_how_to_make_them(bench: Bench) -> None:
    other = build("nowhere_")
    with pytest.raises(StoreError, match="outbox migrate"), bench.engine.begin() as connection:
        insert_rows(connection, other, [new_row("k")], wake=True, open_namespaces=True)


def test_a_mistake_of_the_shops_own_is_not_dressed_up(postgres_bench: Bench) -> None:
    bench = postgres_bench
    with bench.engine.connect() as connection:
        with pytest.raises(sa.exc.ProgrammingError):
            connection.execute(sa.text("SELECT nonsense()"))
        with pytest.raises(sa.exc.InternalError):  # the transaction is broken already
            insert_rows(connection, bench.tables, [new_row("k")], wake=True, open_namespaces=True)
