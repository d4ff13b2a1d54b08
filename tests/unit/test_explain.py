"""The sentence that says why a row is where it is, and what would move it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from outbox_relay.core.explain import Explanation, Facts, QueueSight, explain, needs_sight, refused_by
from outbox_relay.core.keeping import Kept
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.namespaces import HoldInfo, NamespaceInfo, NamespaceState, PlacementKind, Scope
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
ACME = NamespaceInfo(
    namespace="acme",
    state=NamespaceState.ACTIVE,
    placement=PlacementKind.UNPLACED,
    nodes=(),
    max_in_flight=None,
    quota=None,
    in_flight=0,
    due=1,
    parked=0,
    oldest_due_at=NOON - 3 * SECOND,
    held=False,
    created_at=NOON - 60 * MINUTE,
    last_seen_at=None,
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
        ", since the circuit of its queue shop:mail is open: it refused messages because PRECONDITION_FAILED: x"
    )
    due = replace(row, visible_after=NOON - SECOND)
    assert ", since its queue shop:mail refused the last message because PRECONDITION_FAILED: x" in explained(due).why


def test_a_row_that_runs_again_says_what_ended_its_last_attempt() -> None:
    again = replace(PENDING, attempt=2, failures=2, error="the pool process is gone", visible_after=NOON + SECOND)
    assert explained(again).why.endswith(", to run again after attempt 2 ended with the pool process is gone")
    retried = replace(PENDING, attempt=1, retries=1, visible_after=NOON + SECOND)
    assert explained(retried).why.endswith(", to run again: its task asked for retry 1")


def test_a_rearmed_row_says_that_its_lease_ended() -> None:
    row = replace(PENDING, claim_token=UUID(int=9), rearms=2)
    assert ", re-armed (2 times) since its lease ended and nothing was heard of it" in explained(row).why


def test_a_row_that_is_held_or_whose_expires_passed_says_so() -> None:
    hold = HoldInfo(scope=Scope.NAMESPACE, value="acme", reason="moving\nhouse", created_at=NOON - MINUTE, parked=9)
    said = explained(replace(PENDING, parked=True), kept=Kept(holds=[hold]))
    assert said.sentence == (
        "row 7 (shop.charge) is pending: it is held by namespace acme since 2030-01-01 11:59:00.000Z, 1m 0s ago "
        "(moving); 'outbox resume --namespace acme' lets it go on"
    )
    other = replace(hold, scope=Scope.TASK, value="shop.charge", reason=None)
    said = explained(PENDING, kept=Kept(holds=[hold, other]))
    assert " and by task shop.charge since 2030" in said.why
    assert said.moves == "'outbox resume --namespace acme' and 'outbox resume --task shop.charge' let it go on"
    said = explained(replace(PENDING, visible_after=NOON + MINUTE), kept=Kept(holds=[hold]))
    assert "it is not due until 2030-01-01 12:01:00.000Z (in 1m 0s); it is held by namespace acme" in said.why
    assert said.moves == "a relay claims it then, unless it is still held"
    said = explained(replace(PENDING, expires_at=NOON - MINUTE), relays=(RELAY,))
    assert said.moves == "a relay cancels it instead of publishing it"


def test_a_row_that_is_parked_and_not_held_any_more_comes_back_by_itself() -> None:
    said = explained(replace(PENDING, parked=True), relays=(RELAY,))
    assert said.why == "it has been due for 3.0s, and was held, which it is not any more"
    assert said.moves == "a relay puts it back among the due rows at its next look"


def test_a_row_waits_for_one_of_the_nodes_that_its_namespace_is_pinned_to() -> None:
    row = replace(PENDING, namespace="acme")
    kept = Kept(namespace=replace(ACME, placement=PlacementKind.PINNED, nodes=("n1", "n2", "n3")))
    gone = replace(WORKER, node="n1", queues=("acme:celery", "acme:celery@n1"), live=False)
    elsewhere = replace(WORKER, node="n2", queues=("mail@n2",))
    said = explained(row, kept=kept, relays=(RELAY,), workers=(gone, elsewhere))
    assert said.why == (
        "it waits for a worker on one of the nodes n1, n2, n3 that its namespace acme is pinned to; none lives that "
        "serves its task queue celery (n1 last seen 40s ago, n2 lives and does not serve that queue, n3 never seen)"
    )
    assert said.moves == (
        "a worker with '--outbox-node n1' brings it on, or 'outbox placement clear acme' lets it go anywhere"
    )
    assert "behind" not in explained(row, kept=kept, relays=(RELAY,), workers=(replace(gone, live=True),)).why
    shared = replace(gone, live=True, queues=("celery@n1",))
    assert "none lives" in explained(row, kept=kept, relays=(RELAY,), workers=(shared,)).why
    said = explained(row, kept=replace(kept, namespace_queues=False), relays=(RELAY,), workers=(shared,))
    assert said.why.startswith("it has been due")
    preferring = Kept(namespace=replace(ACME, placement=PlacementKind.PREFER, nodes=("n1",)))
    assert explained(row, kept=preferring, relays=(RELAY,)).why.startswith("it has been due")


def test_a_row_whose_own_node_is_outside_the_pinned_ones_says_so() -> None:
    kept = Kept(namespace=replace(ACME, placement=PlacementKind.PINNED, nodes=("n1", "n2")))
    said = explained(replace(PENDING, namespace="acme", node="box-7"), kept=kept, relays=(RELAY,))
    assert said.why == (
        "it waits, because its own node box-7 is not one of the nodes n1, n2 that its namespace acme is pinned to"
    )
    assert said.moves == "'outbox placement pin acme n1 n2 box-7' lets it go there"
    assert explained(replace(PENDING, namespace="acme", node="n2"), kept=kept, relays=(RELAY,)).why.startswith("it has")


def test_a_row_waits_where_the_quota_of_its_namespace_is_used_up() -> None:
    row = replace(PENDING, namespace="acme")
    full = replace(ACME, max_in_flight=5, quota=5, in_flight=5)
    said = explained(row, kept=Kept(namespace=full), relays=(RELAY,))
    assert said.why == "it waits, because the quota of its namespace acme is used up: 5 of 5 are in flight"
    assert said.moves == "it is claimed in its turn when one of them ends; 'outbox quota acme N' changes the quota"
    by_default = Kept(namespace=replace(full, max_in_flight=None))
    assert explained(row, kept=by_default).why.endswith("5 of 5 by default are in flight")
    assert explained(row, kept=Kept(namespace=replace(full, in_flight=4))).why.startswith("it has been due")


def test_a_row_of_a_deprecated_namespace_runs_and_says_so() -> None:
    kept = Kept(namespace=replace(ACME, state=NamespaceState.DEPRECATED))
    said = explained(replace(PENDING, namespace="acme"), kept=kept, relays=(RELAY,))
    assert said.why.endswith("; its namespace acme is deprecated: it takes no new rows, and runs what it has")


def test_a_due_row_says_who_is_before_it() -> None:
    row = replace(PENDING, namespace="acme")
    for ahead, others, words in (
        (0, 0, "and waits for a relay"),
        (1, 0, "and waits its turn, behind 1 row of namespace acme ("),
        (
            1_200,
            3,
            "and waits its turn, behind 1,200 rows of namespace acme and those of 3 other namespaces (",
        ),
        (0, 1, "and waits its turn, behind rows of another namespace ("),
        (10_000, 0, "and waits its turn, behind 10,000 rows or more of namespace acme ("),
    ):
        assert words in explained(row, kept=Kept(namespace=ACME, ahead=ahead, others=others), relays=(RELAY,)).why


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
