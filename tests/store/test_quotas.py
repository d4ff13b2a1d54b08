"""Quotas: no more rows of a namespace in flight than it may have, counted by what is claimed and by nothing else."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.core.beacon import Beacon, Held, HeldState
from outbox_relay.core.leases import rearmed
from outbox_relay.core.namespaces import UNLIMITED
from outbox_relay.core.permits import Shards
from outbox_relay.store.engine import Database
from outbox_relay.store.statements import claiming
from tests.store.bench import LEASE, OVER, Bench, Statements, done, spread
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from uuid import UUID

    from outbox_relay.core.row import Batch
    from outbox_relay.store.outbox import Store
    from tests.support.servers import Postgres

SOON = timedelta(0)  # what is said is read anew before every claim


def quota(bench: Bench, namespace: str, most: int | None) -> None:
    bench.store.governing.set_namespace(namespace, create=True, max_in_flight=most)


def claim(bench: Bench, store: Store, limit: int = 100, lease: timedelta = LEASE) -> Batch:
    return store.claim(limit=limit, claimed_by=bench.me, lease=lease)


def test_a_quota_counts_claimed_rows_and_no_pending_ones(bench: Bench) -> None:
    bench.stage(20, "acme")
    quota(bench, "acme", 5)
    first = bench.claim(100)
    assert spread(first) == {"acme": 5}
    assert not first.more  # there is nothing to do before one of them ends
    assert bench.claim(100) == []
    bench.settle(*(done(row) for row in first[:2]))
    assert len(bench.claim(100)) == 2


def test_a_published_row_still_counts_and_a_released_one_does_not(bench: Bench) -> None:
    bench.stage(20, "acme")
    quota(bench, "acme", 4)
    first = bench.claim(100)
    bench.publish(first[:2])
    assert bench.claim(100) == []
    bench.store.release([row.claim for row in first[2:]])
    assert len(bench.claim(100)) == 2


def test_a_large_backlog_with_none_claimed_is_not_wedged(bench: Bench) -> None:
    bench.stage(1_000, "acme")
    quota(bench, "acme", 3)
    assert len(bench.claim(500)) == 3


def test_rows_over_their_quota_take_no_place(bench: Bench) -> None:
    bench.stage(100, "big")
    bench.stage(30, "other")
    quota(bench, "big", 2)
    batch = bench.claim(16)
    assert spread(batch) == {"big": 2, "other": 14}
    assert batch.more
    assert spread(bench.claim(16)) == {"other": 16}


def test_namespaces_at_their_quota_do_not_hide_others_from_a_small_batch(bench: Bench) -> None:
    for number in range(20):
        bench.stage(5, f"full{number:02}")
        quota(bench, f"full{number:02}", 1)
    assert len(bench.claim(100)) == 20
    bench.stage(1, "late")
    assert spread(bench.claim(4)) == {"late": 1}


def test_a_quota_changes_while_relays_run(bench: Bench) -> None:
    store = bench.another(cache_ttl=SOON)
    bench.stage(50, "acme")
    assert len(claim(bench, store, 10)) == 10
    quota(bench, "acme", 12)
    assert len(claim(bench, store)) == 2
    quota(bench, "acme", 20)
    assert len(claim(bench, store)) == 8
    quota(bench, "acme", 4)
    assert claim(bench, store) == []
    assert store.at_quota == {"acme"}
    quota(bench, "acme", UNLIMITED)
    assert len(claim(bench, store, 29)) == 29
    quota(bench, "acme", None)
    assert len(claim(bench, store)) == 1
    assert store.at_quota == frozenset()


def test_a_change_is_obeyed_within_the_life_of_what_was_read(bench: Bench) -> None:
    store = bench.another(cache_ttl=timedelta(seconds=2))
    quota(bench, "acme", 2)
    bench.stage(50, "acme")
    assert len(claim(bench, store)) == 2
    quota(bench, "acme", 5)
    deadline = threading.Event()
    timer = threading.Timer(4, deadline.set)
    timer.start()
    more: list[int] = []
    while not more and not deadline.is_set():
        more = [row.id for row in claim(bench, store)]
    timer.cancel()
    assert len(more) == 3


def test_a_default_quota_holds_for_every_namespace_that_has_none_of_its_own(bench: Bench) -> None:
    store = bench.another(default_quota=3)
    for name in ("a", "b", "c"):
        bench.stage(10, name)
    quota(bench, "b", 5)
    quota(bench, "c", UNLIMITED)
    assert spread(claim(bench, store)) == {"a": 3, "b": 5, "c": 10}


def test_a_default_quota_with_room_admits_the_rows_of_a_plain_claim(bench: Bench) -> None:
    bench.stage(40)
    plain = [row.id for row in bench.claim(25)]
    bench.store.rearm(rearmed, limit=100)
    bench.set(plain, status="pending", claim_token=None)
    bench.store.reset_watermark()
    assert [row.id for row in claim(bench, bench.another(default_quota=1_000), 25)] == plain


def test_throttling_changes_nothing_about_a_row(bench: Bench) -> None:
    staged = bench.stage(9, "acme", task_queue="mail", node="box-7")
    quota(bench, "acme", 2)
    seen = []
    while batch := bench.claim(100):
        seen += [(row.id, row.message.task_id, row.node, row.message.task_queue, row.attempt) for row in batch]
        bench.settle(*(done(row) for row in batch))
    assert sorted(seen) == [(one.row_id, one.task_id, "box-7", "mail", 0) for one in staged]


def test_what_was_rearmed_makes_room_and_its_late_report_does_no_harm(bench: Bench) -> None:
    bench.stage(5, "acme")
    quota(bench, "acme", 1)
    (first,) = bench.claim(10, lease=OVER)
    bench.store.rearm(rearmed, limit=10)
    (second,) = bench.claim(10)
    assert second.id != first.id or second.token != first.token
    assert bench.claim(10) == []
    bench.settle(done(first))
    bench.settle(done(second))
    in_flight = []
    while batch := bench.claim(10):
        in_flight.append(len(batch))
        bench.settle(*(done(row) for row in batch))
    assert set(in_flight) == {1}


def test_a_beacon_may_exceed_a_quota_since_truth_wins_and_then_it_counts(bench: Bench) -> None:
    bench.stage(3, "acme")
    quota(bench, "acme", 1)
    (first,) = bench.claim(10, lease=OVER)
    bench.store.rearm(rearmed, limit=10)
    bench.set(first.id, visible_after=bench.store.now() + timedelta(hours=1))
    (second,) = bench.claim(10)
    held = Held(first.id, first.token, HeldState.RUNNING_LATE, 1.0)
    beacon = Beacon(instance=bench.me, hostname="w", pool="prefork", queues=("celery",), held=(held,))
    assert bench.store.beacon(beacon, run_lease=timedelta(minutes=1), message_expires=True) == 1
    bench.settle(done(second))
    store = bench.another()
    assert claim(bench, store) == []
    bench.settle(done(first))
    assert len(claim(bench, store)) == 1


def test_one_sweep_counts_with_one_query_however_many_namespaces_there_are(bench: Bench) -> None:
    store = bench.another(default_quota=1)
    for number in range(30):
        bench.stage(3, f"ns{number}")
    claim(bench, store)
    bench.settle(*(done(row) for row in claim(bench, store)))
    bench.stage(1, "ns30")
    with Statements(store.engine) as statements:
        assert len(claim(bench, store)) == 1
    counting = [one for one in statements.seen if "GROUP BY" in one]
    assert len(counting) <= 2  # once to leave out who is full, once under the lock
    assert len(statements.seen) <= 5


@pytest.mark.parametrize("relays", [4])
def test_relays_that_claim_at_once_never_exceed_a_quota(bench: Bench, relays: int) -> None:
    """B58: four relays, two namespaces with quotas; every sample of what is claimed is within them."""
    quotas = {"acme": 2, "globex": 7}
    for name, most in quotas.items():
        bench.stage(100, name)
        quota(bench, name, most)
    over: list[dict[str, int]] = []
    watched = Database(bench.engine, bench.tables)
    finished = threading.Event()
    row = bench.tables.row
    counting = sa.select(row.c.namespace, sa.func.count()).where(row.c.status == "claimed").group_by(row.c.namespace)

    def sample() -> None:
        while not finished.is_set():
            with watched.begin(reads=True) as connection:
                counts = dict(connection.execute(counting).all())  # type: ignore[arg-type]  # rows are pairs
            if any(rows > quotas[name] for name, rows in counts.items()):
                over.append(counts)

    ran: list[UUID] = []

    def relay(store: Store) -> None:
        while len(ran) < 200 and not over:
            batch = claim(bench, store, 50)
            ran.extend(one.token for one in batch)
            bench.settle(*(done(one) for one in batch))

    stores = [bench.another() for _ in range(relays)]
    threads = [threading.Thread(target=relay, args=(store,)) for store in stores]
    watcher = threading.Thread(target=sample)
    for thread in (watcher, *threads):
        thread.start()
    for thread in threads:
        thread.join(60)
    finished.set()
    watcher.join(10)
    assert not over
    assert len(ran) == len(set(ran)) == 200
    assert set(bench.statuses().values()) == {"done"}


# -- shards ----------------------------------------------------------------------------------------------------------


def test_shards_are_disjoint_and_their_union_is_everything(bench: Bench) -> None:
    staged = bench.stage(64) + bench.stage(10, "acme")
    taken: list[list[int]] = []
    for shards in ("0-2/8", "3/8", "4-7/8"):
        store = bench.another(shards=Shards.read(shards))
        taken.append([row.id for row in claim(bench, store)])
        assert claim(bench, store) == []
    assert all(row_id % 8 == 3 for row_id in taken[1])
    assert sorted(row_id for part in taken for row_id in part) == [one.row_id for one in staged]


def test_a_relay_has_its_part_of_a_quota_rounded_up(bench: Bench) -> None:
    bench.stage(200, "acme")
    quota(bench, "acme", 8)
    store = bench.another(shards=Shards.read("0-1/8"))
    assert len(claim(bench, store)) == 2
    assert claim(bench, store) == []
    others = [bench.another(shards=Shards.read(f"{first}-{first + 1}/8")) for first in (2, 4, 6)]
    assert [len(claim(bench, one)) for one in others] == [2, 2, 2]


def test_no_shard_is_left_with_nothing_by_a_small_quota(bench: Bench) -> None:
    bench.stage(64, "acme")
    quota(bench, "acme", 1)
    stores = [bench.another(shards=Shards.read(f"{one}/4")) for one in range(4)]
    assert [len(claim(bench, store)) for store in stores] == [1, 1, 1, 1]


def test_a_count_sees_what_it_waited_for_whatever_isolation_is_the_databases_default(postgres: Postgres) -> None:
    if postgres.owned:
        postgres.start()
    name = postgres.create_database()
    bench = Bench(postgres.url(name))
    with bench.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'")
    bench.engine.dispose()
    bench.stage(4, "acme")
    quota(bench, "acme", 1)
    first, second = bench.another(), bench.another()
    taken: list[int] = []
    with bench.engine.begin() as connection:  # both look, and then wait for their turn to count
        connection.execute(claiming.lock_quotas(bench.tables))
        threads = [
            threading.Thread(target=lambda one=store: taken.append(len(claim(bench, one)))) for store in (first, second)
        ]
        for thread in threads:
            thread.start()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

        def both_wait() -> bool:
            with bench.engine.begin() as other:
                return bool(other.exec_driver_sql(waiting).scalar_one() == 2)

        eventually(both_wait, 4)
    for thread in threads:
        thread.join(30)
    bench.close()
    postgres.drop_database(name)
    assert sorted(taken) == [0, 1]
