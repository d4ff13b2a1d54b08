"""What a row makes of a report, for every kind of report and every state of the row."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product
from uuid import UUID

import pytest

from outbox_relay.core.backoff import Backoff
from outbox_relay.core.lifecycle import Event, Status
from outbox_relay.core.row import RowState
from outbox_relay.core.settlement import (
    MAX_DELAY,
    Delivery,
    Kind,
    Policy,
    Retried,
    Settlement,
    Stale,
    Verdict,
    decide,
)

TOKEN, OTHER = UUID(int=1), UUID(int=2)
DELIVERY = Delivery(7, 3, TOKEN, "outbox.settlements.shop")
POLICY = Policy(6, Backoff(timedelta(seconds=10), 2.0, timedelta(hours=1)))
RETRIED = Retried(delay=90.0, retries=5)

REPORTS = {
    Kind.DONE: Settlement.done(DELIVERY, "t"),
    Kind.FAILED: Settlement.failed(DELIVERY, "t", "ValueError: no"),
    Kind.AGAIN: Settlement.again(DELIVERY, "t", "IOError: no"),
    Kind.LOST: Settlement.lost(DELIVERY, "t", "signal 9"),
    Kind.UNKNOWN: Settlement.unknown(DELIVERY, "t", "shop.charge"),
    Kind.RETRY: Settlement.retry(DELIVERY, "t", RETRIED, "later"),
    Kind.RELEASED: Settlement.released(DELIVERY, "t"),
    Kind.REQUEUED: Settlement.requeued(DELIVERY, "t"),
    Kind.CANCELLED: Settlement.cancelled(DELIVERY, "t", "revoked"),
}

REPORTS_BUT_DONE = [kind for kind in Kind if kind is not Kind.DONE]

# What each kind does to a claimed row: event, status, steps of attempt and failures, delay in seconds.
CLAIMED = {
    Kind.DONE: (Event.DONE, Status.DONE, 0, 0, 0),
    Kind.FAILED: (Event.FAILED, Status.FAILED, 0, 0, 0),
    Kind.AGAIN: (Event.AGAIN, Status.PENDING, 1, 1, 40),
    Kind.LOST: (Event.AGAIN, Status.PENDING, 1, 1, 0),
    Kind.UNKNOWN: (Event.AGAIN, Status.PENDING, 1, 1, 40),
    Kind.RETRY: (Event.RETRY, Status.PENDING, 1, 0, 90),
    Kind.RELEASED: (Event.RETURNED, Status.CLAIMED, 0, 0, 0),
    Kind.REQUEUED: (Event.RETURNED, Status.CLAIMED, 0, 0, 0),
    Kind.CANCELLED: (Event.CANCELLED, Status.CANCELLED, 0, 0, 0),
}


def row(status: Status = Status.CLAIMED, token: UUID | None = TOKEN, **changes: object) -> RowState:
    base = RowState(id=7, task_id="t", status=status, token=token, attempt=3, failures=2, retries=1, max_attempts=None)
    return replace(base, **changes)


def test_every_kind_of_report_is_in_these_tables() -> None:
    assert set(REPORTS) == set(CLAIMED) == set(Kind)


@pytest.mark.parametrize(("kind", "status"), list(product(Kind, (Status.CLAIMED, Status.PENDING))))
def test_a_report_under_the_rows_token_settles_it_also_when_it_was_rearmed(kind: Kind, status: Status) -> None:
    event, target, attempts, failures, seconds = CLAIMED[kind]
    verdict = decide(REPORTS[kind], row(status), POLICY)
    assert verdict == Verdict(
        row_id=7,
        event=event,
        status=target,
        attempt=3 + attempts,
        failures=2 + failures,
        retries=5 if kind is Kind.RETRY else 1,
        delay=timedelta(seconds=seconds),
        error=REPORTS[kind].error,
        retried=REPORTS[kind].retried,
    )


@pytest.mark.parametrize(
    ("kind", "status", "token"),
    list(product(REPORTS_BUT_DONE, [one for one in Status if one is not Status.CANCELLED], (OTHER, None))),
)
def test_an_older_token_changes_nothing(kind: Kind, status: Status, token: UUID | None) -> None:
    assert decide(REPORTS[kind], row(status, token), POLICY) == Stale(7, "the claim is over")


@pytest.mark.parametrize(("kind", "status"), list(product(REPORTS_BUT_DONE, (Status.DONE, Status.FAILED))))
def test_terminal_stays_terminal(kind: Kind, status: Status) -> None:
    assert decide(REPORTS[kind], row(status), POLICY) == Stale(7, f"the row is {status.value}")


@pytest.mark.parametrize(
    ("status", "token"), list(product((Status.PENDING, Status.CLAIMED, Status.FAILED), (TOKEN, OTHER, None)))
)
def test_work_that_is_done_is_done_under_any_token(status: Status, token: UUID | None) -> None:
    verdict = decide(REPORTS[Kind.DONE], row(status, token), POLICY)
    assert isinstance(verdict, Verdict)
    assert (verdict.event, verdict.status) == (Event.DONE, Status.DONE)
    assert (verdict.attempt, verdict.failures, verdict.retries) == (3, 2, 1)


@pytest.mark.parametrize("token", [TOKEN, OTHER, None])
@pytest.mark.parametrize(
    ("kind", "note"),
    [
        (Kind.DONE, "it ran all the same"),
        (Kind.FAILED, "it ran all the same and failed: ValueError"),
        (Kind.AGAIN, "it ran all the same and failed: ValueError"),
        (Kind.LOST, "it ran all the same and failed: ValueError"),
        (Kind.RETRY, "it ran all the same and asked for a retry"),
        (Kind.CANCELLED, "its worker says: ValueError"),
    ],
)
def test_a_cancelled_row_stays_cancelled_and_says_what_became_of_its_task(
    kind: Kind, note: str, token: UUID | None
) -> None:
    report = replace(REPORTS[kind], error="ValueError\nTraceback")
    verdict = decide(report, row(Status.CANCELLED, token), POLICY)
    assert isinstance(verdict, Verdict)
    assert (verdict.event, verdict.status, verdict.error) == (None, Status.CANCELLED, note)
    assert (verdict.attempt, verdict.failures, verdict.retries) == (3, 2, 1)


@pytest.mark.parametrize("kind", REPORTS_BUT_DONE)
def test_a_cancelled_row_takes_no_word_of_an_older_attempt_and_none_of_a_task_that_did_not_run(kind: Kind) -> None:
    older = replace(REPORTS[kind], delivery=replace(REPORTS[kind].delivery, attempt=2))
    assert decide(older, row(Status.CANCELLED, None), POLICY) == Stale(7, "the claim is over")
    if kind in (Kind.RELEASED, Kind.REQUEUED, Kind.UNKNOWN):
        assert decide(REPORTS[kind], row(Status.CANCELLED, None), POLICY) == Stale(7, "the row is cancelled")


@pytest.mark.parametrize("token", [TOKEN, OTHER, None])
def test_done_twice_is_stale(token: UUID | None) -> None:
    assert decide(REPORTS[Kind.DONE], row(Status.DONE, token), POLICY) == Stale(7, "the row is done")


@pytest.mark.parametrize("kind", Kind)
def test_a_report_about_a_pruned_row_changes_nothing(kind: Kind) -> None:
    assert decide(REPORTS[kind], None, POLICY) == Stale(7, "no such row")


@pytest.mark.parametrize(("kind", "status"), list(product(Kind, Status)))
def test_a_report_about_another_task_changes_nothing(kind: Kind, status: Status) -> None:
    assert decide(REPORTS[kind], row(status, task_id="u"), POLICY) == Stale(7, "the task id is another")


@pytest.mark.parametrize("kind", [Kind.RELEASED, Kind.REQUEUED])
def test_a_message_that_comes_back_after_its_end_frees_the_row(kind: Kind) -> None:
    verdict = decide(REPORTS[kind], row(message_over=True), POLICY)
    assert isinstance(verdict, Verdict)
    assert (verdict.event, verdict.status, verdict.delay) == (Event.EXPIRED_RETURN, Status.PENDING, timedelta(0))
    assert (verdict.attempt, verdict.failures) == (3, 2)


@pytest.mark.parametrize("kind", [Kind.AGAIN, Kind.LOST, Kind.UNKNOWN])
@pytest.mark.parametrize(
    ("own", "failures", "exhausted"), [(None, 4, False), (None, 5, True), (3, 2, True), (9, 7, False)]
)
def test_the_rows_own_limit_or_the_apps_ends_it(kind: Kind, own: int | None, failures: int, exhausted: bool) -> None:
    verdict = decide(REPORTS[kind], row(max_attempts=own, failures=failures), POLICY)
    assert isinstance(verdict, Verdict)
    assert verdict.event is (Event.EXHAUSTED if exhausted else Event.AGAIN)
    assert verdict.failures == failures + 1
    assert verdict.attempt == (3 if exhausted else 4)
    assert not exhausted or verdict.delay == timedelta(0)


def test_a_single_attempt_ends_with_the_first_loss() -> None:
    verdict = decide(REPORTS[Kind.LOST], row(max_attempts=1, failures=0, attempt=0), POLICY)
    assert isinstance(verdict, Verdict)
    assert verdict.status is Status.FAILED


def test_lost_is_due_now_and_slow_backs_off() -> None:
    lost = decide(REPORTS[Kind.LOST], row(), POLICY)
    unknown = decide(REPORTS[Kind.UNKNOWN], row(), POLICY)
    assert isinstance(lost, Verdict)
    assert isinstance(unknown, Verdict)
    assert lost.delay == timedelta(0) < unknown.delay


def test_thousands_of_failures_have_a_delay() -> None:
    verdict = decide(REPORTS[Kind.AGAIN], row(failures=5_000, max_attempts=10_000), POLICY)
    assert isinstance(verdict, Verdict)
    assert verdict.delay == timedelta(hours=1)


@pytest.mark.parametrize(
    ("delay", "expected"),
    [(-5.0, timedelta(0)), (float("inf"), MAX_DELAY), (1e300, MAX_DELAY), (0.25, timedelta(seconds=0.25))],
)
def test_a_retrys_delay_is_bounded(delay: float, expected: timedelta) -> None:
    verdict = decide(Settlement.retry(DELIVERY, "t", Retried(delay=delay, retries=1)), row(), POLICY)
    assert isinstance(verdict, Verdict)
    assert verdict.delay == expected


def test_a_retry_without_its_message_runs_what_the_row_has() -> None:
    verdict = decide(Settlement(Kind.RETRY, DELIVERY, "t"), row(), POLICY)
    assert isinstance(verdict, Verdict)
    assert (verdict.event, verdict.retries, verdict.delay) == (Event.RETRY, 1, timedelta(0))
