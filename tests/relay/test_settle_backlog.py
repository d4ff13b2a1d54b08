"""Many reports at once: a backlog after an outage, duplicates and forgeries among them, and several relays at it."""

from __future__ import annotations

import os
import random
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from outbox_relay.core.leases import rearmed
from outbox_relay.core.row import Published
from outbox_relay.core.settlement import Delivery, Settlement
from outbox_relay.core.wire import encode_settlements
from outbox_relay.publish.envelope import report
from tests.relay.test_settle import WORKER, desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outbox_relay.events import Event
    from tests.relay.conftest import Bench, OpenBench

#: Reports in the backlog. OUTBOX_TEST_BACKLOG=200000 makes it one of hours, for a test of minutes.
BACKLOG = int(os.environ.get("OUTBOX_TEST_BACKLOG", "20000"))
PATIENCE = 60 + BACKLOG / 500
HOUR = timedelta(hours=1)
OVER = timedelta(seconds=-1)


def published(bench: Bench, count: int, lease: timedelta = HOUR) -> list[tuple[Delivery, str]]:
    """Rows that a broker has, and what a worker knows of each: the delivery and the task id."""
    bench.stage(count)
    store, queue = bench.outbox.store, bench.outbox.queues.settlements.name
    found: list[tuple[Delivery, str]] = []
    while batch := store.claim(limit=1_000, claimed_by=bench.parts.instance, lease=HOUR):
        store.mark_published([Published(row.claim, "shop") for row in batch], queue_lease=lease)
        found += [(Delivery(row.id, row.attempt, row.token, queue), row.message.task_id) for row in batch]
    return found


def send_all(bench: Bench, settlements: Sequence[Settlement], at_once: int) -> None:
    """Send reports as workers do: ``at_once`` in a message."""
    queue = bench.outbox.queues.settlements
    bodies = [
        encode_settlements(WORKER, settlements[begin : begin + at_once])
        for begin in range(0, len(settlements), at_once)
    ]
    receipts = bench.publisher.publish([report(n, queue, body) for n, body in enumerate(bodies)], timeout=60)
    assert {receipt.outcome.value for receipt in receipts} == {"confirmed"}


def statuses(bench: Bench) -> dict[str, int]:
    return {state: count for state, count in bench.outbox.store.counts().items() if count}


class Tally:
    """Counts what is applied and what is stale, and keeps nothing else."""

    def __init__(self) -> None:
        self.applied = self.stale = 0
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.name == "settle.applied":
                self.applied += int(event.fields["rows"])
            elif event.name == "settle.stale":
                self.stale += 1


def shuffled(settlements: Iterator[Settlement], seed: int) -> list[Settlement]:
    many = list(settlements)
    random.Random(seed).shuffle(many)
    return many


@pytest.mark.timeout(3 * PATIENCE)
def test_a_backlog_of_many_thousands_of_reports_is_worked_off_in_flat_memory(
    open_bench: OpenBench, postgres_url: str, rabbitmq_url: str
) -> None:
    """Each row's end comes twenty times, in any order; what is in hand does not grow with what waits."""
    bench = open_bench(postgres_url, rabbitmq_url)
    tally = Tally()
    bench.outbox.events.subscribe(tally)
    bench.outbox.events.subscribe(lambda _: bench.events.clear())  # what is measured is not the bench's own list
    rows = published(bench, BACKLOG // 20)
    ends = shuffled((Settlement.done(*row) for row in rows for _ in range(20)), seed=1)
    send_all(bench, ends, at_once=20)
    half = len(ends) // 2
    tracemalloc.start()
    try:
        with desk(bench) as here:
            here.tick_until(lambda: tally.applied + tally.stale >= half, within=PATIENCE)
            _, first_peak = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            here.tick_until(lambda: tally.applied + tally.stale == len(ends), within=PATIENCE)
            _, second_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tally.applied, tally.stale) == (len(rows), len(ends) - len(rows))
    assert statuses(bench) == {"done": len(rows)}
    assert second_peak < 1.2 * first_peak, (first_peak, second_peak)
    assert first_peak < 30_000_000, first_peak


def test_two_settlers_and_a_rearmer_at_the_same_rows_neither_deadlock_nor_lose_an_end(
    open_bench: OpenBench, postgres_url: str, rabbitmq_url: str
) -> None:
    bench = open_bench(postgres_url, rabbitmq_url)
    tally = Tally()
    bench.outbox.events.subscribe(tally)
    rows = published(bench, 600, lease=OVER)
    ends = shuffled((Settlement.done(*row) for row in rows for _ in range(6)), seed=2)
    send_all(bench, ends, at_once=30)
    over = threading.Event()

    def settle() -> None:
        with desk(bench) as here:
            here.tick_until(lambda: tally.applied + tally.stale >= len(ends), within=60)

    def rearm() -> int:
        count = 0
        while not over.is_set():
            count += len(bench.outbox.store.rearm(rearmed, limit=50))
        return count

    with ThreadPoolExecutor(3) as pool:
        rearmer = pool.submit(rearm)
        settlers = [pool.submit(settle) for _ in range(2)]
        try:
            for settler in settlers:
                settler.result(timeout=90)
        finally:
            over.set()
        assert rearmer.result(timeout=30) <= len(rows)
    assert statuses(bench) == {"done": len(rows)}
    assert tally.applied == len(rows)
    assert not bench.said("store.lost")


def test_forged_reports_change_nothing(bench: Bench) -> None:
    """Whoever may write to the queue, but does not know the token, cannot end a row; nor with another's token."""
    mine, other = published(bench, 2)
    (delivery, task_id), (others, _) = mine, other
    guessed = Delivery(delivery.row_id, delivery.attempt, uuid4(), delivery.queue)
    stolen = Delivery(delivery.row_id, delivery.attempt, others.token, delivery.queue)
    forged = [
        make(one, task_id, "forged")
        for one in (guessed, stolen)
        for make in (Settlement.failed, Settlement.lost, Settlement.cancelled, Settlement.again, Settlement.unknown)
    ]
    forged += [Settlement.released(stolen, task_id), Settlement.requeued(guessed, task_id)]
    forged += [Settlement.done(delivery, "another task"), Settlement.done(Delivery(10**12, 0, uuid4(), "q"), task_id)]
    before = [bench.outbox.store.find(str(one.row_id)) for one in (delivery, others)]
    with desk(bench) as here:
        send_all(bench, forged, at_once=5)
        here.tick_until(lambda: len(bench.said("settle.stale")) == len(forged))
        assert [bench.outbox.store.find(str(one.row_id)) for one in (delivery, others)] == before
        send_all(bench, [Settlement.failed(delivery, task_id, "true")], at_once=1)
        here.tick_until(lambda: statuses(bench).get("failed") == 1)


def test_a_lost_run_that_is_reported_after_the_next_run_ended_changes_nothing(bench: Bench) -> None:
    """Reports of two deliveries come in the wrong order: the older one is stale, whatever it says."""
    ((first, task_id),) = published(bench, 1, lease=OVER)
    store = bench.outbox.store
    store.rearm(rearmed, limit=10)
    store.reset_watermark()
    eventually(lambda: store.ls(status="pending"))
    (again,) = store.claim(limit=1, claimed_by=bench.parts.instance, lease=HOUR)
    second = Delivery(again.id, again.attempt, again.token, first.queue)
    with desk(bench) as here:
        send_all(
            bench, [Settlement.failed(second, task_id, "boom"), Settlement.lost(first, task_id, "gone")], at_once=1
        )
        here.tick_until(lambda: len(bench.said("settle.stale")) == 1)
        (row,) = store.find(str(first.row_id))
        assert (row.status.value, row.error, row.failures) == ("failed", "boom", 0)
        send_all(bench, [Settlement.done(first, task_id)], at_once=1)  # but work that has been done is done
        here.tick_until(lambda: statuses(bench) == {"done": 1})
