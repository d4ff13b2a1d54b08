"""kill -9 at every point between claim, publish, mark, run and settle: nothing is lost, and no attempt is spent.

A relay kills itself at a named event of its own; a worker is killed by the task that it runs.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.flow.conftest import OpenShop
    from tests.flow.stand import Shop

ROWS = 20

#: Where a relay dies, and whether messages may then run a second time.
ARROWS = {
    "sweep.claimed": False,  # claimed, not published
    "sweep.confirmed": True,  # published, not marked: the re-armed row is published again
    "sweep.published": False,  # marked
    "settle.received": False,  # run and reported, not settled: the broker gives the report again
    "settle.applied": False,  # settled, the report not acknowledged: applied again, it changes nothing
}


@pytest.mark.parametrize("arrow", ARROWS)
def test_a_killed_relay_loses_nothing_and_spends_no_attempt(open_shop: OpenShop, arrow: str) -> None:
    shop = open_shop()
    shop.worker(wait=False)
    victim = shop.relay(dies_at=arrow, wait=False)
    staged = shop.stage_many(ROWS)
    assert victim.wait(30) == -signal.SIGKILL
    shop.relay(wait=False)
    shop.all_done(ROWS, within=40)
    runs = shop.runs()
    assert set(runs) == {one.task_id for one in staged}
    assert all(shop.row(one).attempt == 0 and shop.row(one).failures == 0 for one in staged)
    if not ARROWS[arrow]:
        assert len(runs) == ROWS


@pytest.mark.parametrize("stack", ["postgresql-redis", "sqlite-embedded"])
@pytest.mark.parametrize("arrow", ["sweep.confirmed", "settle.received"])
def test_a_killed_relay_loses_nothing_on_other_stacks(open_shop: OpenShop, stack: str, arrow: str) -> None:
    """The same task ids come again, and nothing else does (B53); reports in hand come back by themselves."""
    shop = open_shop(stack)
    shop.worker(wait=False)
    victim = shop.relay(dies_at=arrow, wait=False)
    staged = shop.stage_many(ROWS)
    assert victim.wait(30) == -signal.SIGKILL
    shop.relay(wait=False)
    shop.all_done(ROWS, within=40)
    assert set(shop.runs()) == {one.task_id for one in staged}


def test_a_relay_killed_in_the_middle_of_many_batches_leaves_its_rows_to_another(open_shop: OpenShop) -> None:
    """All are out within a lease and a poll, by a relay that lives beside it (B54, B93)."""
    shop = open_shop(outbox_batch_size=20)
    shop.worker(wait=False)
    victim = shop.relay(dies_at="sweep.confirmed")
    shop.relay()
    staged = shop.stage_many(300)
    assert victim.wait(30) == -signal.SIGKILL
    shop.all_done(300, within=40)
    assert set(shop.runs()) == {one.task_id for one in staged}


@pytest.mark.parametrize("stack", ["postgresql-rabbitmq", "postgresql-redis", "sqlite-embedded"])
def test_a_killed_worker_loses_no_task_that_it_ran(open_shop: OpenShop, stack: str) -> None:
    """Acknowledged early, so that the broker has forgotten it: the run lease brings it back."""
    shop = open_shop(stack)
    shop.relay(wait=False)
    victim = shop.worker(wait=False)
    staged = shop.stage("kill")
    assert victim.wait(30) == -signal.SIGKILL
    shop.worker(wait=False)
    row = shop.becomes(staged, "done", within=40)
    assert len(shop.runs(staged)) == 2
    assert (row.attempt, row.failures) == (0, 0)


def test_a_killed_worker_loses_no_task_that_it_ran_with_late_acknowledgement(open_shop: OpenShop) -> None:
    """The broker gives it to the next worker, and the row is not re-armed for it."""
    shop = open_shop(task_acks_late=True, outbox_queue_lease=60)
    shop.relay(wait=False)
    victim = shop.worker(wait=False)
    staged = shop.stage("kill")
    assert victim.wait(30) == -signal.SIGKILL
    shop.worker(wait=False)
    row = shop.becomes(staged, "done", within=40)
    assert len(shop.runs(staged)) == 2
    assert (row.attempt, row.failures, row.rearms) == (0, 0, 0)


def test_a_task_that_ran_and_could_not_say_so_runs_again(open_shop: OpenShop) -> None:
    """Done means that somebody said so: a lost report leaves the row claimed, and the lease brings it back."""
    shop = open_shop()
    shop.relay(wait=False)
    victim = shop.worker(wait=False)
    staged = shop.stage("kill_after")
    assert victim.wait(30) == -signal.SIGKILL
    assert shop.status(staged) == "claimed"
    shop.worker(wait=False)
    row = shop.becomes(staged, "done", within=40)
    assert len(shop.runs(staged)) == 2
    assert (row.attempt, row.failures) == (0, 0)


@pytest.mark.parametrize("stack", ["postgresql-rabbitmq", "postgresql-redis"])
def test_what_a_killed_worker_had_only_reserved_runs_elsewhere(open_shop: OpenShop, stack: str) -> None:
    """By the broker, or, where that waits for an hour, by the relay: long before the queue lease ends."""
    shop = open_shop(stack, worker_prefetch_multiplier=10, outbox_queue_lease=600)
    shop.relay(wait=False)
    victim = shop.worker()
    busy = [shop.stage("wait"), shop.stage("wait")]
    eventually(lambda: len(shop.runs()) == 2, 20)
    reserved = [shop.stage("charge", n) for n in range(5)]
    eventually(lambda: victim.count("shop.charge[") == 5, 20, what="five reserved tasks")
    eventually(lambda: all(shop.row(one).worker for one in reserved), 20)
    victim.kill()
    shop.open_gate()
    shop.worker(wait=False)
    shop.all_done(7, within=40)
    assert all(len(shop.runs(one)) == 1 for one in reserved)
    assert all(len(shop.runs(one)) == 2 for one in busy)


def test_a_task_that_takes_its_worker_down_every_time_ends_as_a_dead_letter(open_shop: OpenShop) -> None:
    """Known to run at three re-arms in a row (B67): the last one is not waited for for ever."""
    shop = open_shop()
    shop.relay(wait=False)
    staged = shop.stage("kill_known", max_attempts=1)
    for _ in range(3):
        assert shop.worker(wait=False).wait(40) == -signal.SIGKILL
    row = shop.becomes(staged, "failed", within=40)
    assert "vanished" in row.error
    assert len(shop.runs(staged)) == 3


def test_duplicates_carry_the_same_task_id_and_only_rows_in_flight_have_them(any_shop: Shop) -> None:
    """Both ends die at once, and come back: every row runs, and no row that was settled before runs again."""
    shop = any_shop
    relay, worker = shop.relay(wait=False), shop.worker(wait=False)
    before = shop.stage_many(10)
    shop.all_done(10, within=40)
    after = shop.stage_many(30)
    eventually(lambda: len(shop.runs()) > 12, 20, every=0.005)
    relay.kill()
    worker.kill()
    shop.relay(wait=False)
    shop.worker(wait=False)
    shop.all_done(40, within=40)
    assert set(shop.runs()) == {one.task_id for one in before + after}
    assert all(len(shop.runs(one)) == 1 for one in before)
