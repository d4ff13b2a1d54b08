"""Fairness is per namespace: the places of a batch are shared, whatever each has waiting and wherever it goes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_relay.core.namespaces import NamespaceState, Scope
from tests.store.bench import LEASE, done, spread

if TYPE_CHECKING:
    from outbox_relay.core.row import Batch
    from outbox_relay.store.outbox import Store
    from tests.store.bench import Bench


@pytest.fixture(params=[None, 1_000], ids=["plain", "with quotas"])
def relay(request: pytest.FixtureRequest, bench: Bench) -> Store:
    """A relay on both paths of a claim."""
    return bench.another(cache_ttl=timedelta(0), default_quota=request.param)


def claim(bench: Bench, relay: Store, limit: int) -> Batch:
    return relay.claim(limit=limit, claimed_by=bench.me, lease=LEASE)


def test_five_hundred_rows_over_eight_queues_leave_a_place_for_one(bench: Bench, relay: Store) -> None:
    for number in range(8):
        bench.stage(63, "big", task_queue=f"q{number}")
    bench.stage(1, "small")
    claimed = spread(claim(bench, relay, 8))
    assert claimed["small"] == 1
    assert 1 <= claimed["big"] <= 7


def test_a_quiet_namespace_is_served_in_every_sweep(bench: Bench, relay: Store) -> None:
    bench.stage(400, "loud")
    for _ in range(4):
        bench.stage(1, "quiet")
        assert spread(claim(bench, relay, 20)) == {"loud": 19, "quiet": 1}


def test_what_a_quota_leaves_over_is_shared_by_the_others(bench: Bench) -> None:
    relay = bench.another(cache_ttl=timedelta(0))
    for name in ("a", "b", "c"):
        bench.stage(60, name)
    bench.store.governing.set_namespace("a", create=False, max_in_flight=2)
    assert spread(claim(bench, relay, 30)) == {"a": 2, "b": 14, "c": 14}
    assert spread(claim(bench, relay, 30)) == {"b": 15, "c": 15}


def test_the_turn_goes_round_where_there_are_more_namespaces_than_places(bench: Bench, relay: Store) -> None:
    for number in range(9):
        bench.stage(3, f"ns{number}")
    turns = [spread(claim(bench, relay, 3)) for _ in range(3)]
    assert all(set(turn.values()) == {1} for turn in turns)
    assert len({name for turn in turns for name in turn}) == 9


def test_the_turn_goes_round_past_namespaces_that_are_held_or_full(bench: Bench) -> None:
    relay = bench.another(cache_ttl=timedelta(0))
    for number in range(12):
        bench.stage(3, f"ns{number:02}")
    for number in range(0, 6, 2):
        bench.store.governing.pause(Scope.NAMESPACE, f"ns{number:02}")
        bench.store.governing.set_namespace(f"ns{number + 1:02}", create=False, max_in_flight=1)
    seen: list[str] = []
    for _ in range(3):
        seen += spread(claim(bench, relay, 3))
    assert len(seen) == len(set(seen)) == 9
    assert not {"ns00", "ns02", "ns04"} & set(seen)


def test_after_an_outage_a_backlog_within_its_quota_lets_fresh_rows_of_others_pass(bench: Bench) -> None:
    """B29: the catch-up of one namespace is not everybody's."""
    relay = bench.another(cache_ttl=timedelta(0))
    bench.stage(3_000, "late")
    bench.store.governing.set_namespace("late", create=False, max_in_flight=100)
    assert spread(claim(bench, relay, 50)) == {"late": 50}
    bench.stage(1, "fresh")
    assert spread(claim(bench, relay, 50)) == {"late": 49, "fresh": 1}
    assert spread(claim(bench, relay, 50)) == {"late": 1}
    assert claim(bench, relay, 50) == []


def test_every_row_is_claimed_exactly_once_however_it_is_throttled(bench: Bench) -> None:
    relay = bench.another(cache_ttl=timedelta(0), default_quota=2)
    staged = [one.row_id for number in range(7) for one in bench.stage(1 + 2 * number, f"ns{number}")]
    claimed = []
    while batch := claim(bench, relay, 5):
        claimed += [row.id for row in batch]
        bench.settle(*(done(row) for row in batch))
    assert sorted(claimed) == staged


def test_a_deprecated_namespace_finishes_what_it_has(bench: Bench, relay: Store) -> None:
    bench.stage(5, "old")
    bench.store.governing.set_namespace("old", create=False, state=NamespaceState.DEPRECATED)
    assert spread(claim(bench, relay, 10)) == {"old": 5}


def test_a_batch_that_is_not_full_says_whether_more_can_be_claimed_at_once(bench: Bench) -> None:
    relay = bench.another(cache_ttl=timedelta(0))
    bench.stage(5, "a")
    bench.stage(50, "b")
    bench.store.governing.set_namespace("a", create=False, max_in_flight=3)
    batch = claim(bench, relay, 60)
    assert spread(batch) == {"a": 3, "b": 50}
    assert not batch.more
    bench.stage(50, "b")
    assert claim(bench, relay, 10).more
