"""What operators ask and do, pruning, and the once marker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.core.leases import rearmed
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.row import Cancelled, RowFilter
from outbox_relay.errors import StoreError
from outbox_relay.store import operator
from outbox_relay.store.once import mark_once
from tests.store.bench import HOUR, OVER, Statements, done, failed, new_row

if TYPE_CHECKING:
    from outbox_relay.core.row import ClaimedRow
    from tests.store.bench import Bench

NONE = timedelta(milliseconds=-50)  # an age that everything has


def fail_all(bench: Bench, error: str = "ValueError: no") -> list[ClaimedRow]:
    rows = list(bench.claim(500))
    bench.settle(*(failed(row, error) for row in rows))
    return rows


def test_counts_tell_rows_by_state_and_how_long_the_oldest_waits(bench: Bench) -> None:
    empty = bench.store.counts()
    assert set(empty.values()) == {0}
    bench.stage(8)
    first, second, third, fourth = bench.claim(4)
    bench.settle(done(first), failed(second))
    bench.store.cancel(RowFilter(ids=(third.id,)))
    bench.stage(2, delay=HOUR)
    due = [row.id for row in bench.store.ls(status="pending")][:4]
    bench.set(due[0], parked=True)
    bench.set(due[1], visible_after=bench.store.now() - timedelta(seconds=100))
    counts = bench.store.counts()
    assert {name: counts[name] for name in ("pending", "claimed", "done", "failed", "cancelled")} == {
        "pending": 6,
        "claimed": 1,
        "done": 1,
        "failed": 1,
        "cancelled": 1,
    }
    assert (counts["due"], counts["delayed"], counts["parked"]) == (3, 2, 1)
    assert 100 <= counts["oldest_due_seconds"] < 120
    assert fourth.id


def test_delayed_rows_do_not_wait_yet(bench: Bench) -> None:
    bench.stage(delay=HOUR)
    assert bench.store.counts()["oldest_due_seconds"] == 0


def test_rows_are_listed_by_what_they_are(bench: Bench) -> None:
    bench.insert([new_row("a", "acme"), new_row("b", task="other"), new_row("c", workflow_id="w", ordinal=1)])
    store = bench.store
    assert [row.dispatch_key for row in store.ls()] == ["c", "b", "a"]
    assert [row.dispatch_key for row in store.ls(status="pending")] == ["a", "b", "c"]
    assert [row.dispatch_key for row in store.ls(namespace="acme")] == ["a"]
    assert [row.dispatch_key for row in store.ls(task="other", status="pending")] == ["b"]
    assert [row.dispatch_key for row in store.ls(workflow_id="w")] == ["c"]
    assert store.ls(namespace="acme", task="other") == []
    assert len(store.ls(limit=2)) == 2
    first, second, _ = bench.claim()
    assert [row.id for row in store.ls(status="claimed")][:1] == [first.id]
    bench.settle(failed(first, "KeyError: 100%"))
    bench.settle(failed(second, "OSError"))
    assert [row.id for row in store.ls(status="failed")] == [second.id, first.id]
    assert [row.id for row in store.ls(status="failed", error="100%")] == [first.id]
    assert store.ls(status="failed", error="1%0") == store.ls(status="failed", error="Key_rror") == []
    assert store.ls(status="done") == store.ls(status="cancelled") == []


def test_pending_rows_are_listed_whether_they_are_parked_or_not(bench: Bench) -> None:
    first, second, third = sorted(one.row_id for one in bench.stage(3))
    bench.set([first, third], parked=True)
    assert {row.id: row.parked for row in bench.store.ls(status="pending")} == {first: True, second: False, third: True}
    assert len(bench.store.ls(status="pending", limit=2, task="shop.charge")) == 2


def test_a_list_of_an_unknown_state_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="lost"):
        bench.store.ls(status="lost'; --")


def test_a_row_is_found_by_id_key_or_task_id(bench: Bench) -> None:
    one, two, other = bench.insert([new_row("k", task_id="t1"), new_row("k", "acme", task_id="t2"), new_row("77")])
    find = bench.store.find
    assert [row.id for row in find(str(one.row_id))] == [one.row_id]
    assert [row.id for row in find("k")] == sorted([one.row_id, two.row_id])
    assert [row.id for row in find("t2")] == [two.row_id]
    assert [row.id for row in find("77")] == [other.row_id]
    for nothing in ("nothing", "9" * 40, "", "-1", "²", "a\x00b"):
        if not (nothing == "a\x00b" and bench.dialect == "postgresql"):
            assert find(nothing) == []


def test_a_row_is_found_by_its_task_id_in_every_state(bench: Bench) -> None:
    staged = bench.insert([new_row(f"k{number}", task_id=f"t{number}") for number in range(5)])
    claimed = bench.claim(3)
    bench.settle(done(claimed[0]), failed(claimed[1]))
    bench.set(staged[4].row_id, parked=True)
    for number, one in enumerate(staged):
        assert [row.id for row in bench.store.find(f"t{number}")] == [one.row_id]


def test_the_search_for_a_task_id_among_ended_rows_is_not_long(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is locked, which takes as long as one that is too large."""
    bench = postgres_bench
    bench.insert([new_row("k", task_id="t")])
    monkeypatch.setattr(operator, "FIND_MS", 100)
    with bench.engine.connect() as connection, connection.begin():
        assert [row.dispatch_key for row in bench.store.find("t")] == ["k"]
        connection.exec_driver_sql("LOCK TABLE outbox_row IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match="no row in flight has the task id t2, and to look through those that"):
            bench.store._operator._find_ended({"key": "t2"})


# -- cancel --------------------------------------------------------------------------------------------------------


def test_cancel_ends_pending_and_claimed_rows_and_says_which_may_still_run(bench: Bench) -> None:
    bench.stage(4)
    claimed, ended, rearmed_row = bench.claim(3)
    (pending,) = bench.store.ls(status="pending")
    bench.settle(done(ended))
    bench.publish([claimed])
    bench.set(claimed.id, worker="w-1")
    bench.set(rearmed_row.id, lease_until=bench.store.now())
    bench.store.rearm(rearmed, limit=10)
    ids = (pending.id, claimed.id, ended.id, rearmed_row.id, 10**9, 2**80)
    cancelled = bench.store.cancel(RowFilter(ids=ids), reason="not wanted")
    assert cancelled == [
        Cancelled(id=claimed.id, task_id=claimed.message.task_id, published=True, worker="w-1", queue="celery"),
        Cancelled(id=rearmed_row.id, task_id=rearmed_row.message.task_id, published=True, worker=None),
        Cancelled(id=pending.id, task_id=pending.task_id, published=False, worker=None),
    ]
    seen = bench.see(pending.id)
    assert (seen.status, seen.error) == (Status.CANCELLED, "not wanted")
    assert seen.settled_at is not None
    assert bench.see(ended.id).status is Status.DONE
    assert bench.claim() == []


def test_cancel_of_an_owner_cancels_all_its_rows_and_they_never_come_back(bench: Bench) -> None:
    bench.stage(3, workflow_id="w", ordinal=1)
    bench.stage(1, workflow_id="v")
    rows = bench.claim(2, OVER)
    assert len(bench.store.cancel(RowFilter(workflow_id="w"))) == 3
    assert bench.store.rearm(rearmed, limit=10) == []
    assert bench.store.release([row.claim for row in rows]) == 0
    assert [row.id for row in bench.claim()] == [row.id for row in bench.store.ls(workflow_id="v")]


def test_cancel_goes_a_batch_at_a_time(bench: Bench) -> None:
    staged = bench.stage(7, workflow_id="w")
    wanted = RowFilter(workflow_id="w")
    batches = [[one.id for one in bench.store.cancel(wanted, limit=3)] for _ in range(4)]
    ids = [one.row_id for one in staged]
    assert batches == [ids[:3], ids[3:6], ids[6:], []]


def test_cancel_of_nothing_does_nothing(bench: Bench) -> None:
    assert bench.store.cancel(RowFilter(ids=())) == []
    assert bench.store.cancel(RowFilter(workflow_id="nothing")) == []


# -- dead letters --------------------------------------------------------------------------------------------------


def test_a_redriven_row_is_due_as_new_with_its_last_arguments(bench: Bench) -> None:
    bench.stage(1, retries=0)
    row = bench.claim_one()
    bench.set(row.id, attempt=4, failures=5, retries=2, rearms=3, vanished=1, silent=1, body=b"last")
    bench.settle(failed(row))
    assert bench.store.redrive(RowFilter(ids=(row.id,))) == 1
    again = bench.claim_one()
    seen = bench.see(row.id)
    assert (again.attempt, again.retries, again.message.body) == (0, 0, b"last")
    assert (seen.failures, seen.rearms, seen.vanished, seen.silent, seen.settled_at) == (0, 0, 0, 0, None)


def test_redrive_takes_only_dead_letters_that_are_meant(bench: Bench) -> None:
    bench.insert([new_row("a", "acme"), new_row("b", task="other"), new_row("c"), new_row("d", workflow_id="w")])
    a, b, c, d = sorted(fail_all(bench), key=lambda row: row.message.task_id)[:4]
    store = bench.store
    bench.stage(1)
    assert store.redrive(RowFilter(namespace="globex")) == 0
    assert store.redrive(RowFilter(namespace="acme", error="Value")) == 1
    assert store.redrive(RowFilter(task="other", error="KeyError")) == 0
    assert store.redrive(RowFilter(task="other")) == 1
    assert store.redrive(RowFilter(workflow_id="w")) == 1
    assert store.redrive(RowFilter(ids=(a.id, b.id, d.id))) == 0
    assert store.redrive(RowFilter()) == 1
    assert len(bench.claim()) == 5
    assert c.id


def test_redrive_is_done_a_batch_at_a_time(bench: Bench) -> None:
    bench.stage(5)
    fail_all(bench)
    assert [bench.store.redrive(RowFilter(), limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_redriven_rows_are_found_by_a_relay_that_does_not_look_far_back(bench: Bench) -> None:
    bench.stage(3)
    fail_all(bench)
    bench.claim()
    assert bench.store.redrive(RowFilter()) == 3
    assert len(bench.claim()) == 3


def test_discarded_dead_letters_are_gone_and_their_keys_are_free(bench: Bench) -> None:
    bench.insert([new_row("a"), new_row("b")])
    a, b = fail_all(bench)
    with bench.engine.begin() as connection:
        mark_once(connection, bench.tables, row_id=a.id, task_id="a")
        mark_once(connection, bench.tables, row_id=b.id, task_id="b")
    assert bench.store.discard(RowFilter(ids=(a.id, b.id)), limit=1) == 1
    assert list(bench.statuses()) == [b.id]
    assert bench.store.discard(RowFilter(error="nothing")) == 0
    assert bench.insert([new_row("a")])[0].created
    with bench.engine.begin() as connection:
        assert connection.execute(sa.select(bench.tables.once.c.row_id)).scalars().all() == [b.id]


# -- prune ---------------------------------------------------------------------------------------------------------


def test_prune_deletes_what_has_ended_long_enough_ago(bench: Bench) -> None:
    bench.stage(10)
    rows = bench.claim(8)
    bench.settle(*(done(row) for row in rows[:3]), *(failed(row) for row in rows[3:5]))
    bench.store.cancel(RowFilter(ids=(rows[5].id,)))
    old = bench.store.now() - timedelta(days=2)
    bench.set([rows[0].id, rows[3].id, rows[5].id], settled_at=old)
    assert bench.store.prune(done=timedelta(days=1), failed=timedelta(days=30)) == 2
    assert rows[0].id not in bench.statuses()
    assert bench.store.prune(done=timedelta(days=1), failed=timedelta(days=1)) == 1
    assert bench.store.prune(done=NONE, failed=NONE) == 3
    assert sorted(bench.statuses().values()) == ["claimed", "claimed", "pending", "pending"]


def test_prune_goes_a_batch_at_a_time(bench: Bench) -> None:
    bench.stage(7)
    rows = bench.claim()
    bench.settle(*(done(row) for row in rows[:4]), *(failed(row) for row in rows[4:]))
    assert [bench.store.prune(done=NONE, failed=NONE, limit=3) for _ in range(4)] == [3, 3, 1, 0]


def test_prune_takes_the_once_markers_along(bench: Bench) -> None:
    bench.stage(2)
    first, second = bench.claim()
    with bench.engine.begin() as connection:
        for row in (first, second):
            mark_once(connection, bench.tables, row_id=row.id, task_id=row.message.task_id)
    bench.settle(done(first))
    bench.store.prune(done=NONE, failed=NONE)
    with bench.engine.begin() as connection:
        assert connection.execute(sa.select(bench.tables.once.c.row_id)).scalars().all() == [second.id]


def test_prune_leaves_locked_rows_for_the_next_time(postgres_bench: Bench) -> None:
    bench = postgres_bench
    bench.stage(3)
    rows = bench.claim()
    bench.settle(*(done(row) for row in rows))
    row = bench.tables.row
    with bench.engine.connect() as connection, connection.begin():
        connection.execute(row.select().where(row.c.id == rows[0].id).with_for_update())
        assert bench.store.prune(done=NONE, failed=NONE) == 2
    assert bench.store.prune(done=NONE, failed=NONE) == 1


# -- once ----------------------------------------------------------------------------------------------------------


def test_the_second_run_meets_the_marker_of_the_first(bench: Bench) -> None:
    marks = []
    for _ in range(2):
        with bench.engine.begin() as connection:
            marks.append(mark_once(connection, bench.tables, row_id=7, task_id="a"))
    with bench.engine.begin() as connection:
        marks.append(mark_once(connection, bench.tables, row_id=7, task_id="b"))
    assert marks == [True, False, True]


def test_a_run_that_rolls_back_leaves_no_marker(bench: Bench) -> None:
    with bench.engine.connect() as connection, connection.begin() as transaction:
        assert mark_once(connection, bench.tables, row_id=7, task_id="a")
        transaction.rollback()
    with bench.engine.begin() as connection:
        assert mark_once(connection, bench.tables, row_id=7, task_id="a")


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_second_run_waits_for_the_first_to_end(bench: Bench, first_commits: bool) -> None:
    began = threading.Event()

    def second() -> bool:
        with bench.engine.begin() as connection:
            began.set()
            return mark_once(connection, bench.tables, row_id=7, task_id="a")

    with bench.engine.connect() as connection, ThreadPoolExecutor(1) as pool:
        transaction = connection.begin()
        assert mark_once(connection, bench.tables, row_id=7, task_id="a")
        waiting = pool.submit(second)
        if bench.dialect == "postgresql":
            assert began.wait(10)
        (transaction.commit if first_commits else transaction.rollback)()
        assert waiting.result(30) is not first_commits


def test_an_operators_question_is_one_statement(bench: Bench) -> None:
    bench.stage(3)
    with Statements(bench.engine) as statements:
        bench.store.counts()
        bench.store.ls(status="failed")
    assert len(statements.seen) == 2
