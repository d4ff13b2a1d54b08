"""Settlements: every kind, fenced, in few statements, and nothing that one row does holds back the others."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.core.leases import rearmed
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.row import RowFilter
from outbox_relay.core.settlement import Delivery, Retried, Settlement
from outbox_relay.core.wire import decode_settlements
from outbox_relay.store.statements.parts import CLEARED, WHERE_IT_RAN
from tests.store.bench import HOUR, OVER, Statements, delivery, done, failed, lost

if TYPE_CHECKING:
    from outbox_relay.core.row import ClaimedRow
    from tests.store.bench import Bench


def run(bench: Bench, **changes: object) -> ClaimedRow:
    """Stage a row, claim it, publish it."""
    bench.stage(**changes)  # type: ignore[arg-type]
    row = bench.claim_one()
    bench.publish([row])
    return row


def wait_of(bench: Bench, row_id: int) -> timedelta:
    visible_after: datetime = bench.see(row_id).visible_after
    return visible_after - bench.store.now()


def assert_cleared(bench: Bench, row: ClaimedRow) -> None:
    assert all(bench.column(row.id, name) is None for name in CLEARED)
    assert (bench.see(row.id).vanished, bench.see(row.id).silent) == (0, 0)


def test_done(bench: Bench) -> None:
    row = run(bench)
    bench.set(row.id, vanished=2, silent=2)
    settled = bench.settle(done(row))
    assert [one.row_id for one in settled.verdicts] == [row.id]
    seen = bench.see(row.id)
    assert seen.status is Status.DONE
    assert seen.settled_at is not None
    assert_cleared(bench, row)


def test_a_failed_row_keeps_where_it_ran_until_it_is_redriven_or_done(bench: Bench) -> None:
    rows = [run(bench), run(bench)]
    for row in rows:
        bench.set(row.id, worker="w-1", started_at=bench.store.now())
    bench.settle(*(failed(row) for row in rows))
    redriven, late = rows
    for row in rows:
        seen = bench.see(row.id)
        assert (seen.worker, seen.published_to, seen.claim_token, seen.lease_until) == ("w-1", "celery", None, None)
        assert seen.published_at is not None
        assert seen.started_at is not None
    bench.store.redrive(RowFilter(ids=(redriven.id,)))
    bench.settle(done(late))
    for row in rows:
        assert_cleared(bench, row)


def test_done_before_the_relay_had_marked_the_row_as_published(bench: Bench) -> None:
    bench.stage()
    row = bench.claim_one()
    bench.settle(done(row))
    assert bench.publish([row]) == 0
    assert bench.see(row.id).status is Status.DONE


def test_done_keeps_its_note(bench: Bench) -> None:
    row = run(bench)
    bench.settle(Settlement.done(delivery(row), row.message.task_id, "ignored"))
    assert bench.see(row.id).error == "ignored"


def test_failed(bench: Bench) -> None:
    row = run(bench)
    bench.settle(failed(row, "ValueError: no"))
    seen = bench.see(row.id)
    assert (seen.status, seen.error) == (Status.FAILED, "ValueError: no")
    assert seen.settled_at is not None
    assert all(bench.column(row.id, name) is None for name in set(CLEARED) - set(WHERE_IT_RAN))


@pytest.mark.parametrize(
    "text",
    [
        "nul \x00",
        "lone \ud835 surrogate",
        "emoji 🐘",
        "x" * 20_000,
        "100% 'quoted' \"twice\" ; -- \\",
        "\u202e right to left",
    ],
)
def test_the_text_of_any_error_is_stored(bench: Bench, text: str) -> None:
    row = run(bench)
    settled = bench.settle(failed(row, text))
    assert settled.aside == 0
    assert bench.see(row.id).status is Status.FAILED
    assert bench.see(row.id).error


def test_lost_is_due_now_and_counts_as_a_failure(bench: Bench) -> None:
    row = run(bench)
    bench.settle(lost(row))
    seen = bench.see(row.id)
    assert (seen.status, seen.failures, seen.attempt) == (Status.PENDING, 1, 1)
    assert_cleared(bench, row)
    assert bench.claim_one().attempt == 1


def test_an_unknown_task_backs_off(bench: Bench) -> None:
    row = run(bench)
    bench.settle(Settlement.unknown(delivery(row), row.message.task_id, "NotRegistered"))
    assert (bench.see(row.id).status, bench.see(row.id).failures) == (Status.PENDING, 1)
    assert timedelta(seconds=8) < wait_of(bench, row.id) <= timedelta(seconds=10)


def test_too_many_failures_are_a_dead_letter(bench: Bench) -> None:
    bench.stage(max_attempts=2)
    for expected in (Status.PENDING, Status.FAILED):
        row = bench.claim_one()
        bench.settle(lost(row))
        assert bench.see(row.id).status is expected
    assert bench.claim() == []


def test_backoff_saturates_at_any_number_of_failures(bench: Bench) -> None:
    bench.stage(max_attempts=10_000)
    row = bench.claim_one()
    bench.set(row.id, failures=5_000)
    bench.settle(Settlement.again(delivery(row), row.message.task_id, "ValueError"))
    assert timedelta(seconds=3_000) < wait_of(bench, row.id) <= timedelta(seconds=3_600)


def test_a_retry_takes_its_message_to_the_row(bench: Bench) -> None:
    row = run(bench)
    retried = Retried(delay=20, retries=3, body=b"\x00new\xff", headers=b'{"retries":3}', routing_key="slow")
    bench.settle(Settlement.retry(delivery(row), row.message.task_id, retried, "try again"))
    seen = bench.see(row.id)
    assert (seen.status, seen.retries, seen.attempt, seen.failures) == (Status.PENDING, 3, 1, 0)
    assert (seen.error, seen.routing_key, seen.task_queue) == ("try again", "slow", "celery")
    assert timedelta(seconds=18) < wait_of(bench, row.id) <= timedelta(seconds=20)
    assert bench.column(row.id, "body") == b"\x00new\xff"
    assert bench.column(row.id, "headers") == b'{"retries":3}'
    assert bench.column(row.id, "properties") == row.message.properties
    assert_cleared(bench, row)


def test_a_retry_with_the_same_message_changes_nothing_of_it(bench: Bench) -> None:
    row = run(bench)
    bench.settle(Settlement.retry(delivery(row), row.message.task_id, Retried(delay=0, retries=1)))
    again = bench.claim_one()
    assert again.message == row.message
    assert again.retries == 1


@pytest.mark.parametrize(
    ("headers", "expires_at"),
    [
        (None, datetime(2031, 1, 2, tzinfo=timezone.utc)),  # the same message: what was staged stands
        (b'{"expires": "2032-03-04T05:06:07+02:00"}', datetime(2032, 3, 4, 3, 6, 7, tzinfo=timezone.utc)),
        (b'{"expires": "2032-03-04T05:06:07"}', datetime(2032, 3, 4, 5, 6, 7, tzinfo=timezone.utc)),
        (b'{"expires": null}', None),
    ],
)
def test_a_retry_with_another_expires_expires_then(
    bench: Bench, headers: bytes | None, expires_at: datetime | None
) -> None:
    row = run(bench, expires_at=datetime(2031, 1, 2, tzinfo=timezone.utc))
    retried = Retried(delay=0, retries=1, body=b"changed", headers=headers)
    bench.settle(Settlement.retry(delivery(row), row.message.task_id, retried))
    assert bench.see(row.id).expires_at == expires_at


def test_many_retries_each_with_its_own_message(bench: Bench) -> None:
    bench.stage(20)
    rows = bench.claim()
    bench.settle(
        *(
            Settlement.retry(delivery(row), row.message.task_id, Retried(delay=0, retries=1, body=str(row.id).encode()))
            for row in reversed(rows)
        )
    )
    assert {row.id: row.message.body for row in bench.claim()} == {row.id: str(row.id).encode() for row in rows}


def test_cancelled_by_a_worker(bench: Bench) -> None:
    row = run(bench)
    bench.settle(Settlement.cancelled(delivery(row), row.message.task_id, "revoked"))
    seen = bench.see(row.id)
    assert (seen.status, seen.error) == (Status.CANCELLED, "revoked")
    assert_cleared(bench, row)


@pytest.mark.parametrize("report", [Settlement.released, Settlement.requeued])
def test_a_message_that_went_back_leaves_the_row_claimed(bench: Bench, report: object) -> None:
    row = run(bench)
    bench.set(row.id, lease_until=bench.store.now(), worker="w", started_at=bench.store.now(), silent=2)
    bench.settle(report(delivery(row), row.message.task_id), queue_lease=HOUR)  # type: ignore[operator]
    seen = bench.see(row.id)
    assert (seen.status, seen.claim_token, seen.silent) == (Status.CLAIMED, row.token, 0)
    assert (seen.worker, seen.started_at) == (None, None)
    assert seen.lease_until is not None
    assert timedelta(minutes=59) < seen.lease_until - bench.store.now() <= HOUR
    assert bench.settle(done(row)).verdicts


def test_a_message_that_went_back_lives_no_longer_where_messages_expire(bench: Bench) -> None:
    row = run(bench)
    published_at = bench.see(row.id).published_at
    assert published_at is not None
    bench.set(row.id, published_at=published_at - timedelta(minutes=30))
    bench.settle(
        Settlement.released(delivery(row), row.message.task_id), message_life=timedelta(minutes=45), queue_lease=HOUR
    )
    assert bench.see(row.id).lease_until == published_at + timedelta(minutes=30)


def test_a_message_that_went_back_too_late_is_over(bench: Bench) -> None:
    row = run(bench)
    bench.set(row.id, published_at=bench.store.now() - timedelta(minutes=50))
    bench.settle(
        Settlement.released(delivery(row), row.message.task_id), message_life=timedelta(minutes=45), queue_lease=HOUR
    )
    seen = bench.see(row.id)
    assert (seen.status, seen.attempt, seen.failures) == (Status.PENDING, 0, 0)
    assert_cleared(bench, row)
    assert len(bench.claim()) == 1


def test_a_report_with_an_old_token_changes_nothing(bench: Bench) -> None:
    old = run(bench)
    bench.settle(lost(old))
    new = bench.claim_one()
    before = bench.see(new.id)
    for report in (failed(old), lost(old), Settlement.released(delivery(old), old.message.task_id)):
        settled = bench.settle(report)
        assert [one.row_id for one in settled.stale] == [old.id]
        assert bench.see(new.id) == before


def test_a_report_about_another_task_id_or_a_row_that_is_gone_changes_nothing(bench: Bench) -> None:
    row = run(bench)
    before = bench.see(row.id)
    gone = Delivery(10**9, 0, uuid.uuid4(), "q")
    settled = bench.settle(Settlement.done(delivery(row), "another"), Settlement.done(gone, "x"))
    assert len(settled.stale) == 2
    assert bench.see(row.id) == before


def test_a_stale_claim_settles_after_a_rearm_until_the_next_claim(bench: Bench) -> None:
    bench.stage(3)
    rows = bench.claim(lease=OVER)
    bench.store.rearm(rearmed, limit=10)
    assert set(bench.statuses().values()) == {"pending"}
    assert bench.settle(failed(rows[0])).verdicts
    assert bench.see(rows[0].id).status is Status.FAILED
    again = bench.claim()
    assert bench.settle(failed(rows[1])).stale
    assert {row.id for row in again} == {rows[1].id, rows[2].id}


def test_done_is_accepted_late_whatever_was_thought_of_the_row(bench: Bench) -> None:
    bench.stage(2)
    first, second = bench.claim()
    bench.settle(failed(first), lost(second))
    assert bench.claim_one().id == second.id
    settled = bench.settle(done(first), done(second))
    assert len(settled.verdicts) == 2
    assert set(bench.statuses().values()) == {"done"}


def test_done_twice_is_stale(bench: Bench) -> None:
    row = run(bench)
    bench.settle(done(row))
    settled_at = bench.see(row.id).settled_at
    assert bench.settle(done(row)).stale
    assert bench.see(row.id).settled_at == settled_at


def test_a_cancelled_row_stays_cancelled_and_says_that_it_ran(bench: Bench) -> None:
    row = run(bench)
    bench.store.cancel(RowFilter(ids=(row.id,)), reason="stop it")
    bench.settle(done(row))
    bench.settle(done(row))
    seen = bench.see(row.id)
    assert seen.status is Status.CANCELLED
    assert seen.error == "stop it; it ran all the same"


def test_a_cancelled_row_says_how_its_run_failed_and_is_not_run_again(bench: Bench) -> None:
    row = run(bench)
    bench.store.cancel(RowFilter(ids=(row.id,)), reason="100% sure")
    for report in (failed(row, "ValueError: 5%\nTraceback"), failed(row, "ValueError: 5%\nTraceback"), lost(row)):
        bench.settle(report)
    seen = bench.see(row.id)
    assert (seen.status, seen.failures) == (Status.CANCELLED, 0)
    assert seen.error == (
        "100% sure; it ran all the same and failed: ValueError: 5%; "
        "it ran all the same and failed: the pool process is gone"
    )


def test_terminal_is_terminal_for_every_report_but_done(bench: Bench) -> None:
    row = run(bench)
    bench.settle(failed(row))
    before = bench.see(row.id)
    for report in (failed(row, "again"), lost(row), Settlement.cancelled(delivery(row), row.message.task_id, "x")):
        assert bench.settle(report).stale
    assert bench.see(row.id) == before


def test_reports_of_one_row_in_a_batch_are_applied_in_their_order(bench: Bench) -> None:
    row = run(bench)
    settled = bench.settle(Settlement.released(delivery(row), row.message.task_id), failed(row), done(row), done(row))
    assert [one.status for one in settled.verdicts] == [Status.CLAIMED, Status.FAILED, Status.DONE]
    assert len(settled.stale) == 1
    assert bench.see(row.id).status is Status.DONE


def test_a_parked_row_that_is_rearmed_and_settled_is_not_parked_any_more(bench: Bench) -> None:
    row = run(bench)
    bench.set(row.id, status="pending", parked=True)
    bench.settle(done(row))
    assert not bench.see(row.id).parked


@pytest.mark.parametrize("task_id", ["é", "a" * 300])
def test_done_is_done_whatever_the_task_is_called(bench: Bench, task_id: str) -> None:
    row = run(bench)
    bench.set(row.id, task_id=task_id)
    settled = bench.settle(Settlement.done(delivery(row), task_id, "ignored: ünlikely"))
    assert [one.status for one in settled.verdicts] == [Status.DONE]
    seen = bench.see(row.id)
    assert (seen.status, seen.error) == (Status.DONE, "ignored: ünlikely")


@pytest.mark.parametrize("task_id", ["a\0b", "\ud800"])
def test_a_report_on_a_task_that_no_row_can_have_changes_nothing_and_holds_up_no_other(
    bench: Bench, task_id: str
) -> None:
    rows = [run(bench) for _ in range(2)]
    settled = bench.settle(Settlement.done(delivery(rows[0]), task_id), done(rows[1]))
    assert [one.why for one in settled.stale] == ["the task id is another"]
    assert [one.row_id for one in settled.verdicts] == [rows[1].id]


def test_five_hundred_outcomes_are_one_statement_or_two_on_sqlite(bench: Bench) -> None:
    bench.stage(500)
    rows = bench.claim(500)
    bench.publish(rows)
    with Statements(bench.engine) as statements:
        bench.settle(*(done(row) for row in rows))
    assert len(statements.seen) == (2 if bench.dialect == "sqlite" else 1)
    assert set(bench.statuses().values()) == {"done"}


def test_five_hundred_rows_take_at_most_six_statements_from_staged_to_done(bench: Bench) -> None:
    with Statements(bench.engine) as statements:
        bench.stage(500, "default")
        rows = bench.claim(500)
        bench.publish(rows)
        bench.settle(*(done(row) for row in rows))
    assert set(bench.statuses().values()) == {"done"}
    assert len(statements.seen) <= 6


# -- what the database refuses -------------------------------------------------------------------------------------


def refused(row: ClaimedRow) -> Settlement:
    """A report that no database takes: half a character."""
    return Settlement.retry(delivery(row), row.message.task_id, Retried(delay=0, retries=1, routing_key="\ud835"))


def test_a_report_that_the_database_refuses_is_set_aside_and_the_rest_is_applied(bench: Bench) -> None:
    bench.stage(20)
    rows = bench.claim()
    reports = [refused(row) if row is rows[7] else done(row) for row in rows]
    settled = bench.settle(*reports)
    assert settled.aside == 1
    assert len(settled.verdicts) == 19
    assert [row_id for row_id, status in bench.statuses().items() if status == "claimed"] == [rows[7].id]
    with bench.engine.begin() as connection:
        kept = connection.execute(sa.select(bench.tables.aside)).mappings().one()
    assert (kept["row_id"], kept["kind"]) == (rows[7].id, "retry")
    assert kept["reason"]
    (report,) = decode_settlements(kept["body"])[1]
    assert report.task_id == rows[7].message.task_id


def test_a_report_about_a_row_id_out_of_range_is_set_aside(bench: Bench) -> None:
    row = run(bench)
    strange = Settlement.done(Delivery(2**70, 0, uuid.uuid4(), "q"), "x")
    settled = bench.settle(strange, done(row))
    assert settled.aside + len(settled.stale) == 1  # a database may also simply not find it
    assert bench.see(row.id).status is Status.DONE


def test_what_cannot_be_read_is_set_aside(bench: Bench) -> None:
    bench.store.set_aside(b"\x00\xff", "not JSON: \x00")
    with bench.engine.begin() as connection:
        kept = connection.execute(sa.select(bench.tables.aside)).mappings().one()
    assert (kept["body"], kept["reason"]) == (b"\x00\xff", "not JSON: \\x00")


def test_no_reports_are_no_statements(bench: Bench) -> None:
    with Statements(bench.engine) as statements:
        assert bench.settle().verdicts == []
    assert statements.seen == []
