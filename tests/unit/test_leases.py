"""What becomes of a row whose lease has ended, by section "Workers, leases, settlements" of the documentation."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from outbox_relay.core.beacon import HeldState
from outbox_relay.core.leases import (
    Evidence,
    Leases,
    Renewal,
    Sight,
    StaleRow,
    judge,
    judge_gone,
    rearmed,
    relay_live_for,
    renewal,
)
from outbox_relay.core.lifecycle import Event, Status

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
LEASES = Leases(30 * MINUTE / 60, 60 * MINUTE, MINUTE, MINUTE / 6)
ROW = StaleRow(
    id=7,
    token=UUID(int=1),
    claimed_at=NOON - 61 * MINUTE,
    published_at=NOON - 60 * MINUTE,
    queue="celery",
    worker=None,
    started_at=None,
    vanished=0,
    silent=0,
)
UNMARKED = replace(ROW, published_at=None, queue=None)
RUNNING = replace(ROW, worker="w", started_at=NOON - 50 * MINUTE)
RESERVED = replace(ROW, worker="w")


def on_rabbitmq(**sight: Any) -> Evidence:
    return Evidence(now=NOON, leases=LEASES, message_life=LEASES.message_life, sights={"celery": Sight(**sight)})


def on_redis(**sight: Any) -> Evidence:
    return Evidence(now=NOON, leases=LEASES, message_life=None, sights={"celery": Sight(**sight)})


def test_a_message_expires_three_heartbeats_before_its_lease() -> None:
    assert LEASES.message_life == 60 * MINUTE - timedelta(seconds=30)


def test_a_relay_publishes_for_half_of_its_lease() -> None:
    assert LEASES.publishing_time == timedelta(seconds=15)


def test_a_relay_counts_as_live_while_a_broker_may_still_hold_messages_for_it() -> None:
    assert relay_live_for(timedelta(seconds=35), timedelta(seconds=10)) == timedelta(seconds=35)
    assert relay_live_for(timedelta(seconds=3), timedelta(seconds=10)) == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("state", "expires", "expected"),
    [
        (HeldState.RESERVED, True, Renewal.AT_LEAST),
        (HeldState.RESERVED, False, Renewal.AT_LEAST),
        (HeldState.RUNNING_LATE, True, Renewal.AT_LEAST),
        (HeldState.RUNNING_LATE, False, Renewal.EXACTLY),
        (HeldState.RUNNING_EARLY, True, Renewal.EXACTLY),
        (HeldState.RUNNING_EARLY, False, Renewal.EXACTLY),
    ],
)
def test_only_what_the_broker_has_too_keeps_the_queue_lease(state: HeldState, expires: bool, expected: Renewal) -> None:
    assert renewal(state, message_expires=expires) is expected


@pytest.mark.parametrize("evidence", [on_rabbitmq(), on_redis()])
def test_a_claim_that_never_was_marked_is_rearmed_and_counts_for_nothing(evidence: Evidence) -> None:
    judgement = judge(UNMARKED, evidence)
    assert (judgement.event, judgement.status, judgement.silent, judgement.vanished) == (
        Event.REARM,
        Status.PENDING,
        0,
        0,
    )


@pytest.mark.parametrize("evidence", [on_rabbitmq(ready=5), on_redis(ready=5), on_redis()])
def test_a_running_task_whose_worker_went_quiet_is_rearmed_whatever_its_queue_looks_like(evidence: Evidence) -> None:
    judgement = judge(RUNNING, evidence)
    assert (judgement.event, judgement.vanished) == (Event.REARM, 1)


def test_the_third_vanishing_in_a_row_is_the_last() -> None:
    assert judge(replace(RUNNING, vanished=1), on_rabbitmq()).event is Event.REARM
    judgement = judge(replace(RUNNING, vanished=2), on_rabbitmq())
    assert (judgement.event, judgement.status, judgement.vanished) == (Event.VANISHED, Status.FAILED, 3)
    assert "vanished" in str(judgement.error)


def test_a_rearm_of_a_task_that_was_not_known_to_run_breaks_the_row_of_vanishings() -> None:
    assert judge(replace(ROW, vanished=2), on_rabbitmq()).vanished == 0
    assert judge_gone(replace(RESERVED, vanished=2)).vanished == 0


def test_an_expired_message_that_nobody_was_seen_to_take_is_rearmed_without_a_count() -> None:
    for evidence in (on_rabbitmq(), on_rabbitmq(ready=0, consumed=True), on_rabbitmq(ready=9)):
        judgement = judge(ROW, evidence)
        assert (judgement.event, judgement.silent) == (Event.REARM, 0)


@pytest.mark.parametrize(
    ("minutes_after_publish", "counts"), [(-1.0, False), (0.0, False), (0.5, True), (59.5, True), (59.6, False)]
)
def test_silence_counts_where_the_queue_ran_dry_while_the_message_could_be_in_it(
    minutes_after_publish: float, counts: bool
) -> None:
    assert ROW.published_at is not None
    seen = ROW.published_at + minutes_after_publish * MINUTE
    assert judge(ROW, on_rabbitmq(drained_at=(seen,))).silent == int(counts)


def test_the_third_silence_fails_and_names_the_queue() -> None:
    seen = (NOON - 30 * MINUTE,)
    assert judge(replace(ROW, silent=1), on_rabbitmq(drained_at=seen)).event is Event.REARM
    judgement = judge(replace(ROW, silent=2), on_rabbitmq(drained_at=seen))
    assert (judgement.event, judgement.status, judgement.silent) == (Event.SILENT, Status.FAILED, 3)
    assert judgement.error == "no worker of queue celery reports: is the outbox installed there?"


@pytest.mark.parametrize("row", [ROW, RESERVED])
def test_silence_never_counts_where_a_worker_reports(row: StaleRow) -> None:
    reported = row is ROW
    rabbitmq = on_rabbitmq(drained_at=(NOON - 30 * MINUTE,), reported=reported)
    redis = on_redis(ready=0, consumed=True, reported=reported)
    for evidence in (rabbitmq, redis):
        judgement = judge(replace(row, silent=2), evidence)
        assert judgement.event is Event.REARM
        assert judgement.silent <= 2


def test_a_queue_that_cannot_be_asked_leaves_the_row_claimed_for_a_while() -> None:
    for evidence in (on_redis(), Evidence(now=NOON, leases=LEASES, message_life=None)):
        judgement = judge(ROW, evidence)
        assert (judgement.event, judgement.status, judgement.lease) == (None, Status.CLAIMED, LEASES.patience)


def test_a_backlog_on_a_broker_that_keeps_messages_extends_the_lease() -> None:
    for head in (None, NOON - 61 * MINUTE, NOON - 60 * MINUTE):
        judgement = judge(ROW, on_redis(ready=3, head_published_at=head, consumed=True))
        assert (judgement.event, judgement.lease) == (None, LEASES.queue)


def test_a_queue_that_has_moved_past_the_message_rearms_it_without_a_count() -> None:
    judgement = judge(ROW, on_redis(ready=3, head_published_at=NOON - 59 * MINUTE, consumed=True))
    assert (judgement.event, judgement.silent) == (Event.REARM, 0)


def test_an_empty_queue_counts_only_while_somebody_consumes_it() -> None:
    assert judge(ROW, on_redis(ready=0)).silent == 0
    assert judge(ROW, on_redis(ready=0, consumed=True)).silent == 1


def test_the_word_of_an_operator_needs_no_evidence_and_spends_nothing() -> None:
    judgement = rearmed(replace(RUNNING, vanished=2, silent=2))
    assert (judgement.event, judgement.status) == (Event.REARM, Status.PENDING)
