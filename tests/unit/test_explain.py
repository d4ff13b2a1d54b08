"""The sentence that says why a row is where it is, and what would move it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from outbox_relay.core.explain import Explanation, Facts, QueueSight, explain, needs_sight, refused_by
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.processes import RelayInfo, WorkerInfo
from outbox_relay.core.row import RowDetail

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
PENDING = RowDetail(
    id=7,
    namespace="default",
    dispatch_key="k",
    workflow_id=None,
    run_id=None,
    ordinal=None,
    task_queue="celery",
    node=None,
    exchange="",
    routing_key="celery",
    task="shop.charge",
    task_id="t",
    content_type="application/json",
    content_encoding="utf-8",
    body_bytes=20,
    status=Status.PENDING,
    due=True,
    parked=False,
    attempt=0,
    failures=0,
    retries=0,
    max_attempts=None,
    rearms=0,
    vanished=0,
    silent=0,
    visible_after=NOON - 3 * SECOND,
    expires_at=None,
    claim_token=None,
    claimed_at=None,
    claimed_by=None,
    lease_until=None,
    published_at=None,
    published_to=None,
    started_at=None,
    worker=None,
    error=None,
    settle_on=None,
    created_at=NOON - MINUTE,
    settled_at=None,
)
RELAY = RelayInfo(
    instance=UUID(int=1),
    hostname="box-1",
    loops="sweep and settle",
    live=True,
    live_for=35.0,
    started_at=NOON - 60 * MINUTE,
    last_seen_at=NOON,
    applied_at=None,
    marker=None,
    marker_at=None,
)
WORKER = WorkerInfo(
    instance=UUID(int=2),
    hostname="w1@box-2",
    pool="prefork",
    node=None,
    namespaces=None,
    queues=("celery",),
    held=1,
    live=True,
    started_at=NOON - 60 * MINUTE,
    last_seen_at=NOON - 40 * SECOND,
)
CLAIMED = replace(
    PENDING,
    status=Status.CLAIMED,
    due=False,
    claim_token=UUID(int=9),
    claimed_at=NOON - 2 * SECOND,
    claimed_by=RELAY.instance,
    lease_until=NOON + 28 * SECOND,
)
QUEUED = replace(CLAIMED, published_at=NOON - MINUTE, published_to="celery", lease_until=NOON + 59 * MINUTE)
HELD = replace(QUEUED, worker=str(WORKER.instance))
RUNNING = replace(HELD, started_at=NOON - 50 * SECOND, lease_until=NOON + 55 * SECOND)


def explained(row: RowDetail, **changes: Any) -> Explanation:
    facts = Facts(row=row, now=NOON, relays=(), workers=(), run_lease=MINUTE)
    return explain(replace(facts, **changes))


# -- pending ------------------------------------------------------------------------------------------------------


def test_a_row_that_is_not_due_waits_until_it_is() -> None:
    row = replace(PENDING, visible_after=NOON + 3 * MINUTE)
    said = explained(row)
    assert said.sentence == (
        "row 7 (shop.charge) is pending: it is not due until 2030-01-01 12:03:00.000Z (in 3m 0s); "
        "a relay claims it then"
    )


def test_a_due_row_waits_for_a_relay_that_sweeps() -> None:
    for relays in ((), (replace(RELAY, live=False),), (replace(RELAY, loops="settle"),)):
        said = explained(PENDING, relays=relays)
        assert said.why == "it has been due for 3.0s, and no relay lives that would claim it"
        assert said.moves == "start one: 'outbox relay'"
    said = explained(PENDING, relays=(RELAY, replace(RELAY, instance=UUID(int=3), hostname="box-3")))
    assert said.why == "it has been due for 3.0s, and waits for a relay (2 relays live: box-1, box-3)"


def test_a_row_that_its_queue_refused_says_why() -> None:
    row = replace(PENDING, visible_after=NOON + SECOND, error=refused_by("shop:mail", "PRECONDITION_FAILED: x\nmore"))
    assert explained(row).why.endswith(
        ", since its queue shop:mail refused the last message because PRECONDITION_FAILED: x"
    )


def test_a_row_that_runs_again_says_what_ended_its_last_attempt() -> None:
    again = replace(PENDING, attempt=2, failures=2, error="the pool process is gone", visible_after=NOON + SECOND)
    assert explained(again).why.endswith(", to run again after attempt 2 ended with the pool process is gone")
    retried = replace(PENDING, attempt=1, retries=1, visible_after=NOON + SECOND)
    assert explained(retried).why.endswith(", to run again: its task asked for retry 1")


def test_a_rearmed_row_says_that_its_lease_ended() -> None:
    row = replace(PENDING, claim_token=UUID(int=9), rearms=2)
    assert ", re-armed (2 times) since its lease ended and nothing was heard of it" in explained(row).why


def test_a_row_that_is_held_or_whose_expires_passed_says_so() -> None:
    assert explained(replace(PENDING, parked=True)).why == "it is held"
    said = explained(replace(PENDING, expires_at=NOON - MINUTE), relays=(RELAY,))
    assert said.moves == "a relay cancels it instead of publishing it"


# -- claimed ------------------------------------------------------------------------------------------------------


def test_a_row_that_is_being_published_names_its_relay_and_its_lease() -> None:
    said = explained(CLAIMED, relays=(RELAY,))
    assert said.why == f"relay {RELAY.instance} on box-1, which lives, claimed it 2.0s ago and is publishing it"
    assert said.moves == (
        "where it is not published by the end of its publish lease, 2030-01-01 12:00:28.000Z (in 28s), it is re-armed"
    )
    assert "which is gone" in explained(CLAIMED, relays=(replace(RELAY, live=False),)).why
    assert "which is gone" in explained(CLAIMED).why


@pytest.mark.parametrize(
    ("sight", "workers", "why"),
    [
        (QueueSight(ready=5), (WORKER,), "waits there behind 4 messages at most; of the workers that report, w1@box-2"),
        (QueueSight(ready=1, consumers=0), (), "behind no other message; nobody consumes that queue"),
        (QueueSight(ready=9, consumers=2), (), "8 messages at most; 2 consumers, but no worker that reports serves it"),
        (QueueSight(ready=9), (replace(WORKER, live=False),), "no worker that reports serves it"),
        (QueueSight(ready=9), (replace(WORKER, queues=("mail",)),), "no worker that reports serves it"),
        (QueueSight(ready=0, consumers=1), (), "somebody took it and has not reported on it"),
        (QueueSight(missing=True), (), "the broker has no such queue any more"),
        (QueueSight(trouble="refused\nmore"), (), "and the broker cannot be asked: refused"),
    ],
)
def test_a_queued_row_says_what_is_before_it_and_who_serves_its_queue(
    sight: QueueSight, workers: tuple[WorkerInfo, ...], why: str
) -> None:
    said = explained(QUEUED, sight=sight, workers=workers)
    assert said.why.startswith("it was published to the queue celery 1m 0s ago, and ")
    assert why in said.why
    assert said.moves is not None
    assert "the end of its queue lease, 2030-01-01 12:59:00.000Z (in 59m 0s)" in said.moves


def test_a_row_of_a_queue_that_is_gone_names_the_command_that_publishes_it_again() -> None:
    moves = explained(QUEUED, sight=QueueSight(missing=True)).moves
    assert moves is not None
    assert moves.startswith("'outbox rearm --queue celery' publishes it again at once")
    moves = explained(QUEUED, sight=QueueSight(ready=0)).moves
    assert moves is not None
    assert moves.endswith("; if the broker lost it, 'outbox rearm --queue celery' publishes it again")


def test_a_running_row_names_its_worker_how_long_it_runs_and_its_lease() -> None:
    said = explained(RUNNING, workers=(WORKER,))
    assert said.why == "worker w1@box-2 has been running it for 50s"
    assert said.moves is not None
    assert "the end of its run lease, 2030-01-01 12:00:55.000Z (in 55s)" in said.moves
    late = explained(replace(RUNNING, lease_until=NOON + 59 * MINUTE), workers=(WORKER,))
    assert late.moves is not None
    assert "its queue lease" in late.moves


def test_a_row_of_a_worker_that_is_silent_says_when_it_was_last_seen() -> None:
    said = explained(RUNNING, workers=(replace(WORKER, live=False),))
    assert said.why == "worker w1@box-2 has been running it for 50s, and was last seen 40s ago"
    assert said.moves is not None
    assert "it is re-armed" in said.moves
    gone = explained(HELD)
    assert gone.why == f"worker {WORKER.instance} has received it and not started it yet, and is not known any more"


def test_a_lease_that_is_over_says_so() -> None:
    moves = explained(replace(RUNNING, lease_until=NOON - SECOND)).moves
    assert moves is not None
    assert "the end of its run lease, which was 1.0s ago" in moves


def test_the_queue_is_looked_at_only_where_it_matters() -> None:
    assert needs_sight(QUEUED)
    assert not any(needs_sight(row) for row in (PENDING, CLAIMED, HELD, RUNNING))


# -- ended --------------------------------------------------------------------------------------------------------


def test_an_ended_row_says_how_and_when_and_what_can_still_be_done() -> None:
    ended = replace(PENDING, settled_at=NOON - MINUTE, due=False)
    assert explained(replace(ended, status=Status.DONE)).sentence == (
        "row 7 (shop.charge) is done: its task ended 1m 0s ago"
    )
    noted = explained(replace(ended, status=Status.DONE, error="ignored"))
    assert (noted.why, noted.moves) == ("its task ended 1m 0s ago (ignored)", None)
    cancelled = explained(replace(ended, status=Status.CANCELLED, error="revoked"))
    assert (cancelled.why, cancelled.moves) == ("it was cancelled 1m 0s ago because revoked", None)
    failed = explained(replace(ended, status=Status.FAILED, error="ValueError: no\nTraceback"))
    assert failed.why == "it failed 1m 0s ago because ValueError: no"
    assert failed.moves == "'outbox failed redrive 7' runs it again"


@pytest.mark.parametrize("status", list(Status))
def test_an_explanation_is_one_line_for_every_state(status: Status) -> None:
    sentence = explained(replace(PENDING, status=status, error="one\ntwo\r\nthree" + "x" * 9_000)).sentence
    assert "\n" not in sentence
    assert len(sentence) < 600
