"""What becomes of claims before a worker has a say: published, released, postponed, failed, expired; all fenced."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_relay.core.lifecycle import Status
from outbox_relay.core.row import Claim, Published
from outbox_relay.store.statements.parts import CLEARED
from tests.store.bench import HOUR, OVER

if TYPE_CHECKING:
    from outbox_relay.core.row import ClaimedRow
    from tests.store.bench import Bench


def end(bench: Bench, how: str, claims: list[Claim]) -> int:
    store = bench.store
    return {
        "publish": lambda: store.mark_published([Published(claim, "celery") for claim in claims], queue_lease=HOUR),
        "final": lambda: store.mark_published(
            [Published(claim, "celery", final=True) for claim in claims], queue_lease=HOUR
        ),
        "release": lambda: store.release(claims),
        "postpone": lambda: store.postpone(claims, HOUR, "no route"),
        "unsendable": lambda: store.fail_unsendable([(claim, "too large") for claim in claims]),
        "expire": lambda: store.expire(claims),
    }[how]()


ENDS = ("publish", "final", "release", "postpone", "unsendable", "expire")


def assert_cleared(bench: Bench, row: ClaimedRow) -> None:
    assert all(bench.column(row.id, name) is None for name in CLEARED)


def test_a_published_row_stays_claimed_under_the_queue_lease(bench: Bench) -> None:
    bench.stage(2)
    rows = bench.claim()
    assert bench.publish(rows, "acme:celery") == 2
    row = bench.see(rows[0].id)
    assert (row.status, row.published_to, row.claim_token) == (Status.CLAIMED, "acme:celery", rows[0].token)
    assert row.published_at is not None
    assert row.lease_until is not None
    assert row.lease_until - row.published_at == HOUR


def test_a_row_that_settles_on_publish_is_done(bench: Bench) -> None:
    bench.stage(2)
    first, second = bench.claim()
    published = [Published(first.claim, "celery", final=True), Published(second.claim, "celery")]
    assert bench.store.mark_published(published, queue_lease=HOUR) == 2
    assert bench.see(first.id).status is Status.DONE
    assert bench.see(first.id).settled_at is not None
    assert_cleared(bench, first)
    assert bench.see(second.id).status is Status.CLAIMED


def test_a_released_row_is_due_at_once(bench: Bench) -> None:
    bench.stage()
    row = bench.claim_one()
    assert bench.store.release([row.claim]) == 1
    assert_cleared(bench, row)
    again = bench.claim_one()
    assert (again.id, again.attempt) == (row.id, 0)
    assert again.token != row.token


def test_a_postponed_row_waits_and_says_why(bench: Bench) -> None:
    bench.stage()
    row = bench.claim_one()
    assert bench.store.postpone([row.claim], timedelta(minutes=5), "queue full") == 1
    assert_cleared(bench, row)
    seen = bench.see(row.id)
    assert (seen.status, seen.error, seen.attempt, seen.failures) == (Status.PENDING, "queue full", 0, 0)
    assert bench.claim() == []
    assert timedelta(minutes=4) < seen.visible_after - bench.store.now() <= timedelta(minutes=5)


def test_a_publish_clears_what_was_said_of_an_earlier_failure(bench: Bench) -> None:
    bench.stage()
    bench.store.postpone([bench.claim_one().claim], timedelta(0), "queue full")
    row = bench.claim_one()
    bench.publish([row])
    assert bench.see(row.id).error is None


def test_an_unsendable_row_fails_with_its_own_reason(bench: Bench) -> None:
    bench.stage(2)
    first, second = bench.claim()
    assert bench.store.fail_unsendable([(first.claim, "a"), (second.claim, "b")]) == 2
    assert (bench.see(first.id).error, bench.see(second.id).error) == ("a", "b")
    assert bench.see(first.id).status is Status.FAILED
    assert_cleared(bench, first)


def test_an_expired_row_is_cancelled(bench: Bench) -> None:
    bench.stage()
    row = bench.claim_one()
    assert bench.store.expire([row.claim]) == 1
    seen = bench.see(row.id)
    assert seen.status is Status.CANCELLED
    assert seen.error is not None
    assert seen.settled_at is not None
    assert_cleared(bench, row)


@pytest.mark.parametrize("how", ENDS)
def test_a_wrong_token_ends_nothing(bench: Bench, how: str) -> None:
    bench.stage()
    row = bench.claim_one()
    before = bench.see(row.id)
    assert end(bench, how, [Claim(row.id, uuid.uuid4()), Claim(row.id + 1, row.token)]) == 0
    assert bench.see(row.id) == before


@pytest.mark.parametrize("how", ENDS)
def test_nothing_given_is_nothing_done(bench: Bench, how: str) -> None:
    assert end(bench, how, []) == 0


@pytest.mark.parametrize("how", ENDS)
def test_a_claim_that_was_taken_over_ends_nothing(bench: Bench, how: str) -> None:
    from outbox_relay.core.leases import rearmed

    bench.stage()
    old = bench.claim_one(lease=OVER)
    bench.store.rearm(rearmed, limit=10)
    new = bench.claim_one()
    before = bench.see(new.id)
    assert end(bench, how, [old.claim]) == 0
    assert bench.see(new.id) == before


def test_a_row_that_was_rearmed_while_the_broker_took_it_is_claimed_again_by_its_publish(bench: Bench) -> None:
    from outbox_relay.core.leases import rearmed

    bench.stage()
    row = bench.claim_one(lease=OVER)
    bench.store.rearm(rearmed, limit=10)
    assert bench.see(row.id).status is Status.PENDING
    assert bench.publish([row]) == 1
    assert bench.see(row.id).status is Status.CLAIMED
    assert bench.claim() == []


@pytest.mark.parametrize("how", ["postpone", "unsendable"])
def test_a_reason_that_no_database_takes_is_kept_as_one_that_it_does(bench: Bench, how: str) -> None:
    bench.stage(1)
    (row,) = bench.claim()
    reason = "odd: \0 \ud800"
    if how == "postpone":
        bench.store.postpone([row.claim], HOUR, reason)
    else:
        bench.store.fail_unsendable([(row.claim, reason)])
    assert bench.see(row.id).error == "odd: \\x00 \\ud800"
