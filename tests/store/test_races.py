"""Two connections at once: every claim is one relay's, every transition is guarded, nobody deadlocks."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from outbox_relay.core.beacon import Beacon, Held, HeldState
from outbox_relay.core.leases import rearmed
from outbox_relay.core.row import Published, RowFilter
from tests.store.bench import HOUR, LEASE, OVER, POLICY, done, failed, lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_relay.store.outbox import Store
    from tests.store.bench import Bench


@pytest.fixture
def stores(bench: Bench) -> Iterator[Callable[[int], list[Store]]]:
    """Stores with connections of their own."""
    made: list[Store] = []

    def make(count: int) -> list[Store]:
        made.extend(bench.another() for _ in range(count))
        return made

    yield make
    for store in made:
        store.close()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls in a thread each, from one moment on; return their results."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def drain(bench: Bench, store: Store, rows: list[int]) -> None:
    while batch := bench.claim(7, LEASE, store):
        rows += [row.id for row in batch]


def test_relays_that_claim_at_once_never_claim_the_same_row(bench: Bench, stores: Callable[[int], list[Store]]) -> None:
    bench.stage(200)
    bench.stage(60, "acme")
    claimed: list[int] = []
    several = stores(4)
    for _ in range(5):  # rows that another relay had locked are left for a later look
        at_once(*(lambda store=store: drain(bench, store, claimed) for store in several))
        for store in several:
            store.reset_watermark()
        if len(claimed) == 260:
            break
    assert len(claimed) == len(set(claimed)) == 260


def test_reports_of_the_same_rows_in_any_order_do_not_deadlock(
    bench: Bench, stores: Callable[[int], list[Store]]
) -> None:
    bench.stage(150)
    rows = bench.claim(150)

    def settle(store: Store, seed: int) -> int:
        shuffled = random.Random(seed).sample(rows, len(rows))
        verdicts = 0
        for begin in range(0, 150, 50):
            reports = [(done, failed, lost)[row.id % 3](row) for row in shuffled[begin : begin + 50]]
            verdicts += len(store.settle(reports, POLICY, message_life=None, queue_lease=HOUR).verdicts)
        return verdicts

    verdicts = at_once(*(lambda store=store, seed=seed: settle(store, seed) for seed, store in enumerate(stores(3))))
    assert sum(verdicts) == 150
    assert set(bench.statuses().values()) == {"done", "failed", "pending"}


def test_all_that_can_touch_the_same_rows_at_once_does_not_deadlock(
    bench: Bench, stores: Callable[[int], list[Store]]
) -> None:
    bench.stage(120)
    rows = bench.claim(120, OVER)
    held = tuple(Held(row.id, row.token, HeldState.RUNNING_LATE, 1.0) for row in reversed(rows))
    beacon = Beacon(instance=bench.me, hostname="h", pool="solo", queues=("celery",), held=held)
    one, two, three, four, five = stores(5)
    at_once(
        lambda: one.settle([lost(row) for row in rows[::2]], POLICY, message_life=None, queue_lease=HOUR),
        lambda: two.mark_published([Published(row.claim, "celery") for row in reversed(rows)], queue_lease=HOUR),
        lambda: three.beacon(beacon, run_lease=LEASE, message_expires=True),
        lambda: four.rearm(rearmed, limit=200),
        lambda: five.cancel(RowFilter(ids=tuple(row.id for row in rows[::5]))),
    )
    statuses = bench.statuses()
    assert len(statuses) == 120
    assert {statuses[row.id] for row in rows[::5]} == {"cancelled"}


def test_a_cancel_and_a_claim_at_once_leave_one_winner(bench: Bench, stores: Callable[[int], list[Store]]) -> None:
    one, two = stores(2)
    for _ in range(10):
        (staged,) = bench.stage()
        batch, _ = at_once(
            lambda: bench.claim(5, LEASE, one),
            lambda: two.cancel(RowFilter(ids=(staged.row_id,))),  # noqa: B023
        )
        assert bench.see(staged.row_id).status.value == "cancelled"
        assert bench.publish(batch) == 0  # whoever came first: a cancelled row takes no publish any more
        assert bench.column(staged.row_id, "claim_token") is None


def test_a_report_and_a_rearm_at_once_lose_nothing(bench: Bench, stores: Callable[[int], list[Store]]) -> None:
    one, two = stores(2)
    bench.stage(60)
    rows = bench.claim(60, OVER)
    settled, judged = at_once(
        lambda: one.settle([done(row) for row in rows], POLICY, message_life=None, queue_lease=HOUR),
        lambda: two.rearm(rearmed, limit=100),
    )
    assert len(settled.verdicts) == 60
    assert len(judged) <= 60
    assert set(bench.statuses().values()) == {"done"}


def test_two_rearms_at_once_count_once(bench: Bench, stores: Callable[[int], list[Store]]) -> None:
    one, two = stores(2)
    bench.stage(40)
    bench.claim(40, OVER)
    judged = at_once(lambda: one.rearm(rearmed, limit=100), lambda: two.rearm(rearmed, limit=100))
    assert sum(len(one) for one in judged) == 40
    assert {row.rearms for row in bench.store.ls(limit=100)} == {1}


def test_a_claim_skips_rows_that_another_relay_has_locked(postgres_bench: Bench) -> None:
    bench = postgres_bench
    bench.stage(4)
    row = bench.tables.row
    with bench.engine.connect() as connection, connection.begin():
        locked = connection.execute(row.select().order_by(row.c.id).limit(2).with_for_update()).all()
        batch = bench.claim(10)
    assert len(batch) == 2
    assert {one.id for one in locked}.isdisjoint(claimed.id for claimed in batch)
    bench.store.reset_watermark()
    assert len(bench.claim(10)) == 2


def test_a_relay_does_not_wait_for_a_lock_for_ever(postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from outbox_relay.errors import StoreAway
    from outbox_relay.store import engine

    bench = postgres_bench
    monkeypatch.setitem(engine._TIMEOUTS, "lock_timeout", 100)
    store = bench.another()
    bench.stage()
    claimed = bench.claim_one()
    row = bench.tables.row
    with bench.engine.connect() as connection, connection.begin():
        connection.execute(row.select().where(row.c.id == claimed.id).with_for_update())
        with pytest.raises(StoreAway, match="lock timeout"):
            store.release([claimed.claim])
    assert store.release([claimed.claim]) == 1
    store.close()
