"""Beacons, re-arming, and the registers of relays and workers."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_relay.core.beacon import Beacon, Held, HeldState
from outbox_relay.core.leases import Judgement, StaleRow, judge_gone, rearmed
from outbox_relay.core.lifecycle import Event, Status
from tests.store.bench import HOUR, LEASE, OVER, done, failed

if TYPE_CHECKING:
    from outbox_relay.core.row import ClaimedRow
    from tests.store.bench import Bench

RUN = timedelta(seconds=60)


def beacon(worker: uuid.UUID, *held: Held, **changes: object) -> Beacon:
    fields = {"instance": worker, "hostname": "box", "pool": "prefork", "queues": ("celery",), "held": held, **changes}
    return Beacon(**fields)  # type: ignore[arg-type]


def held(row: ClaimedRow, state: HeldState = HeldState.RUNNING_EARLY, age: float = 5.0) -> Held:
    return Held(row.id, row.token, state, age)


def tell(bench: Bench, *rows: Held, worker: uuid.UUID | None = None, message_expires: bool = True) -> int:
    return bench.store.beacon(beacon(worker or bench.me, *rows), run_lease=RUN, message_expires=message_expires)


def lease_of(bench: Bench, row: ClaimedRow) -> timedelta:
    until = bench.see(row.id).lease_until
    assert until is not None
    return until - bench.store.now()


def published(bench: Bench, lease: timedelta = HOUR) -> ClaimedRow:
    bench.stage()
    row = bench.claim_one()
    bench.publish([row], lease=lease)
    return row


# -- beacons -------------------------------------------------------------------------------------------------------


def test_a_beacon_says_who_holds_the_row_and_since_when(bench: Bench) -> None:
    row = published(bench)
    bench.set(row.id, silent=2)
    assert tell(bench, held(row, age=5.0)) == 1
    seen = bench.see(row.id)
    assert seen.worker == str(bench.me)
    assert seen.started_at is not None
    assert timedelta(seconds=4.9) < bench.store.now() - seen.started_at < timedelta(seconds=15)
    assert seen.silent == 0


def test_only_the_worker_has_it_so_the_run_lease_counts(bench: Bench) -> None:
    row = published(bench)
    tell(bench, held(row))
    assert timedelta(seconds=50) < lease_of(bench, row) <= RUN


@pytest.mark.parametrize("state", [HeldState.RESERVED, HeldState.RUNNING_LATE])
def test_where_the_broker_has_it_too_the_lease_never_becomes_shorter(bench: Bench, state: HeldState) -> None:
    long, short = published(bench), published(bench, timedelta(seconds=2))
    assert tell(bench, held(long, state), held(short, state)) == 2
    assert lease_of(bench, long) > timedelta(minutes=59)
    assert timedelta(seconds=50) < lease_of(bench, short) <= RUN


def test_a_task_that_runs_late_on_a_broker_that_keeps_messages_has_the_run_lease(bench: Bench) -> None:
    row = published(bench)
    tell(bench, held(row, HeldState.RUNNING_LATE), message_expires=False)
    assert lease_of(bench, row) <= RUN


def test_a_reserved_row_is_not_known_to_run(bench: Bench) -> None:
    row = published(bench)
    tell(bench, held(row, HeldState.RESERVED))
    assert bench.see(row.id).started_at is None
    assert bench.see(row.id).worker == str(bench.me)


def test_a_task_started_when_its_worker_first_said_so(bench: Bench) -> None:
    row = published(bench)
    tell(bench, held(row, age=5.0))
    started_at = bench.see(row.id).started_at
    tell(bench, held(row, age=500.0))
    assert bench.see(row.id).started_at == started_at
    tell(bench, held(row, age=1.0), worker=uuid.uuid4())  # the broker gave it to another one
    again = bench.see(row.id).started_at
    assert started_at is not None
    assert again is not None
    assert again > started_at


def test_a_rearmed_row_that_turns_out_to_be_held_is_claimed_again(bench: Bench) -> None:
    row = published(bench, OVER)
    bench.store.rearm(rearmed, limit=10)
    bench.set(row.id, parked=True)
    assert tell(bench, held(row)) == 1
    seen = bench.see(row.id)
    assert (seen.status, seen.claim_token, seen.parked) == (Status.CLAIMED, row.token, False)
    assert bench.claim() == []
    assert bench.settle(done(row)).verdicts


def test_a_beacon_with_an_old_token_holds_nothing(bench: Bench) -> None:
    old = published(bench, OVER)
    bench.store.rearm(rearmed, limit=10)
    bench.claim_one()
    before = bench.see(old.id)
    assert tell(bench, held(old)) == 0
    assert bench.see(old.id) == before


def test_a_publish_that_is_marked_after_the_task_began_leaves_its_lease(bench: Bench) -> None:
    bench.stage()
    row = bench.claim_one()
    tell(bench, held(row))
    assert bench.publish([row]) == 1
    assert lease_of(bench, row) <= RUN


def test_a_publish_that_is_marked_after_its_worker_has_come_and_gone_leaves_the_row_due(bench: Bench) -> None:
    """A relay was held up in between: the message is not out any more, and no lease would ever end."""
    bench.stage()
    row = bench.claim_one()
    tell(bench, held(row))
    bench.set(row.id, lease_until=bench.store.now() - LEASE)
    assert len(bench.store.rearm(judge_gone, limit=10)) == 1
    bench.publish([row])
    seen = bench.see(row.id)
    assert (seen.status, seen.due) == (Status.PENDING, True)
    assert bench.claim_one().id == row.id


def test_a_row_that_a_beacon_names_twice_is_held_once(bench: Bench) -> None:
    row = published(bench)
    assert tell(bench, held(row), held(row)) == 1


def test_a_worker_is_registered_as_its_beacon_describes_it(bench: Bench) -> None:
    worker = uuid.uuid4()
    row = published(bench)
    changes = {"node": "box-7", "namespaces": ("acme",), "age": 100.0}
    bench.store.beacon(beacon(worker, held(row), **changes), run_lease=RUN, message_expires=True)
    (first,) = bench.store.workers(timedelta(seconds=35))
    assert (first.instance, first.hostname, first.pool, first.node) == (worker, "box", "prefork", "box-7")
    assert (first.namespaces, first.queues, first.held, first.live) == (("acme",), ("celery",), 1, True)
    assert timedelta(seconds=99) < bench.store.now() - first.started_at < timedelta(seconds=110)
    bench.store.beacon(beacon(worker, partial=True, age=200.0), run_lease=RUN, message_expires=True)
    (second,) = bench.store.workers(timedelta(0))
    assert (second.held, second.namespaces, second.started_at) == (1, None, first.started_at)
    assert second.last_seen_at > first.last_seen_at
    assert not second.live


def test_a_partial_beacon_of_a_new_worker_counts_nothing(bench: Bench) -> None:
    bench.store.beacon(beacon(bench.me, partial=True), run_lease=RUN, message_expires=True)
    assert bench.store.workers(RUN)[0].held == 0


# -- re-arming -----------------------------------------------------------------------------------------------------


def test_a_row_whose_lease_is_over_is_due_again_and_keeps_its_token(bench: Bench) -> None:
    row = published(bench, OVER)
    (judged,) = bench.store.rearm(rearmed, limit=10)
    assert (judged.row_id, judged.event) == (row.id, Event.REARM)
    seen = bench.see(row.id)
    assert (seen.status, seen.rearms, seen.attempt, seen.failures) == (Status.PENDING, 1, 0, 0)
    assert (seen.claim_token, seen.lease_until) == (row.token, None)
    assert bench.store.rearm(rearmed, limit=10) == []
    again = bench.claim_one()
    assert (again.id, again.attempt) == (row.id, 0)
    assert again.token != row.token
    assert bench.see(row.id).published_at is None


def test_a_row_whose_lease_goes_on_is_left_alone(bench: Bench) -> None:
    published(bench)
    bench.stage()
    bench.claim()
    assert bench.store.stale(10) == []
    assert bench.store.rearm(rearmed, limit=10) == []


def test_fifteen_rearms_change_nothing_but_their_count(bench: Bench) -> None:
    bench.stage(1, "acme", task_queue="q", exchange="", routing_key="q")
    first = bench.claim_one(OVER)
    for _ in range(15):
        bench.store.rearm(rearmed, limit=10)
        last = bench.claim_one(OVER)
    assert last.message == first.message
    assert bench.see(last.id).rearms == 15


def test_the_judge_sees_what_is_known_of_the_row(bench: Bench) -> None:
    row = published(bench, timedelta(seconds=-90))
    worker = uuid.uuid4()
    tell(bench, held(row, age=70.0), worker=worker)
    bench.set(row.id, lease_until=bench.store.now(), vanished=1, silent=2)
    bench.stage()
    unmarked = bench.claim_one(OVER)
    seen: dict[int, StaleRow] = {}

    def judge(stale: StaleRow) -> Judgement:
        seen[stale.id] = stale
        return rearmed(stale)

    assert {one.id for one in bench.store.stale(10)} == {row.id, unmarked.id}
    bench.store.rearm(judge, limit=10)
    known, unknown = seen[row.id], seen[unmarked.id]
    assert (known.queue, known.worker, known.vanished, known.silent) == ("celery", str(worker), 1, 2)
    assert known.started_at is not None
    assert known.published_at is not None
    assert (unknown.queue, unknown.worker, unknown.published_at, unknown.started_at) == (None, None, None, None)
    assert unknown.token == unmarked.token


def test_the_third_time_that_a_running_task_vanishes_is_the_last(bench: Bench) -> None:
    bench.stage()
    for expected in (Status.PENDING, Status.PENDING, Status.FAILED):
        row = bench.claim_one()
        tell(bench, held(row))
        bench.set(row.id, lease_until=bench.store.now())
        (judged,) = bench.store.rearm(judge_gone, limit=10)
        assert bench.see(row.id).status is judged.status is expected
    seen = bench.see(row.id)
    assert seen.error is not None
    assert "vanished" in seen.error
    assert (seen.claim_token, seen.worker, seen.settled_at is not None) == (None, str(bench.me), True)
    assert bench.settle(done(row)).verdicts  # it had only been cut off


def test_a_judgement_may_let_the_lease_go_on(bench: Bench) -> None:
    row = published(bench, OVER)

    def waits(stale: StaleRow) -> Judgement:
        status = Status.CLAIMED
        return Judgement(row_id=stale.id, event=None, status=status, vanished=0, silent=0, lease=RUN)

    bench.store.rearm(waits, limit=10)
    assert timedelta(seconds=50) < lease_of(bench, row) <= RUN
    assert bench.store.stale(10) == []


def test_a_judgement_without_a_word_on_its_row_is_refused() -> None:
    """The row would be looked at again and again, and those behind it never."""
    with pytest.raises(ValueError, match="without a word"):
        Judgement(row_id=1, event=None, status=Status.CLAIMED, vanished=0, silent=0)


def test_rows_are_rearmed_a_batch_at_a_time(bench: Bench) -> None:
    bench.stage(10)
    bench.claim(lease=OVER)
    assert [len(bench.store.rearm(rearmed, limit=4)) for _ in range(4)] == [4, 4, 2, 0]


def test_an_old_claim_among_many_newer_ones_is_found(bench: Bench) -> None:
    row = published(bench)
    bench.store.stale(10)
    bench.stage(20)
    bench.claim()
    bench.store.stale(10)
    bench.set(row.id, lease_until=bench.store.now())
    assert [one.id for one in bench.store.stale(10)] == [row.id]


def test_a_lost_queue_is_rearmed_but_for_what_live_workers_hold(bench: Bench) -> None:
    bench.stage(4)
    waiting, running, orphaned, elsewhere = bench.claim()
    bench.publish([waiting, running, orphaned])
    bench.publish([elsewhere], "other")
    dead = uuid.uuid4()
    tell(bench, held(running))
    tell(bench, held(orphaned), worker=dead)
    judged = bench.store.rearm_queue(rearmed, queue="celery", before=None, live=[bench.me], limit=10)
    assert {one.row_id for one in judged} == {waiting.id, orphaned.id}
    assert bench.see(running.id).status is Status.CLAIMED
    assert bench.see(elsewhere.id).status is Status.CLAIMED


def test_only_what_was_published_before_an_instant_is_orphaned(bench: Bench) -> None:
    old = published(bench)
    instant = bench.store.now() + timedelta(milliseconds=1)
    bench.set(old.id, published_at=instant - timedelta(seconds=1))
    new = published(bench)
    bench.set(new.id, published_at=instant + timedelta(seconds=1))
    judged = bench.store.rearm_queue(judge_gone, queue="celery", before=instant, live=[], limit=10)
    assert [one.row_id for one in judged] == [old.id]


def test_queues_in_flight_are_those_of_unreported_rows(bench: Bench) -> None:
    bench.stage(4)
    first, second, third, _ = bench.claim()
    bench.publish([first], "a")
    bench.publish([second], "b")
    bench.publish([third], "a")
    tell(bench, held(second))
    assert bench.store.queues_in_flight(10) == ["a"]


def test_a_settled_row_is_never_rearmed(bench: Bench) -> None:
    bench.stage(2)
    first, second = bench.claim(lease=OVER)
    bench.settle(done(first), failed(second))
    assert bench.store.rearm(rearmed, limit=10) == []


# -- relays --------------------------------------------------------------------------------------------------------


def test_a_relay_signs_reports_what_it_applied_and_leaves(bench: Bench) -> None:
    store, instance, marker = bench.store, uuid.uuid4(), uuid.uuid4()
    store.relay_seen(instance, "box", "sweep settle", timedelta(seconds=35))
    (first,) = store.relays()
    assert (first.instance, first.hostname, first.loops, first.live) == (instance, "box", "sweep settle", True)
    assert (first.applied_at, first.marker, first.live_for) == (None, None, 35.0)
    applied = store.now()
    store.relay_seen(instance, "box", "settle", timedelta(seconds=35), applied=applied)
    store.marker_back(instance, marker)
    store.relay_seen(instance, "box", "settle", timedelta(0))
    (last,) = store.relays()
    assert (last.applied_at, last.marker, last.loops) == (applied, marker, "settle")
    assert last.marker_at is not None
    assert last.started_at == first.started_at
    assert not last.live
    store.relay_gone(instance)
    assert store.relays() == []


def test_processes_that_are_long_gone_are_forgotten(bench: Bench) -> None:
    store = bench.store
    store.relay_seen(uuid.uuid4(), "box", "sweep", LEASE)
    store.beacon(beacon(uuid.uuid4()), run_lease=RUN, message_expires=True)
    assert store.forget_processes(HOUR) == 0
    assert store.forget_processes(timedelta(seconds=-5)) == 2
    assert (store.relays(), store.workers(HOUR)) == ([], [])
