"""Quotas, a relay's part of them, and how far back claimed rows are counted."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_relay.core.permits import EVERYTHING, Census, Shards, headroom, wanted
from outbox_relay.core.planning import ALWAYS, share

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("text", "shards"),
    [("0-15/64", Shards(0, 15, 64)), ("3/64", Shards(3, 3, 64)), ("0/1", EVERYTHING), ("63-63/64", Shards(63, 63, 64))],
)
def test_shards_are_read(text: str, shards: Shards) -> None:
    assert Shards.read(text) == shards


@pytest.mark.parametrize(
    "text", ["", "all", "1", "16-15/64", "64/64", "0-64/64", "0/0", "-1/4", "a/b", "0-1/4 ", "٣/4"]
)
def test_other_shards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'0-15/64'"):
        Shards.read(text)


@pytest.mark.parametrize(
    ("quota", "claimed", "shards", "room"),
    [
        (5, 0, EVERYTHING, 5),
        (5, 3, EVERYTHING, 2),
        (5, 9, EVERYTHING, 0),
        (8, 0, Shards(0, 1, 8), 2),
        (8, 2, Shards(0, 1, 8), 0),
        (1, 0, Shards(5, 5, 64), 1),
        (10, 0, Shards(0, 2, 8), 4),
    ],
)
def test_headroom_is_the_relays_part_less_what_is_claimed(quota: int, claimed: int, shards: Shards, room: int) -> None:
    assert headroom(quota, claimed, shards) == room


@given(st.integers(1, 1_000), st.integers(1, 64), st.data())
def test_the_parts_of_disjoint_shards_make_the_quota_and_at_most_one_more_each(
    quota: int, total: int, data: st.DataObject
) -> None:
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(1, total), max_size=5))})
    parts = [Shards(first, last - 1, total).part_of(quota) for first, last in pairwise(cuts)]
    assert quota <= sum(parts) < quota + len(parts)


@given(
    st.dictionaries(st.text(min_size=1, max_size=2), st.integers(0, 50), max_size=20),
    st.dictionaries(st.text(min_size=1, max_size=2), st.integers(0, 10), max_size=20),
    st.integers(0, 100),
)
def test_a_plan_never_crosses_its_quota(due: dict[str, int], room: dict[str, int], places: int) -> None:
    shares = share(wanted(due, room), places)
    assert all(rows <= room.get(name, rows) for name, rows in shares.items())
    assert sum(shares.values()) == min(places, sum(wanted(due, room).values()))


def test_a_count_begins_at_the_oldest_claim_there_is() -> None:
    census = Census()
    assert census.begin(0.0) == ALWAYS
    census.counted(NOON, NOON - 60 * SECOND, alone=True)
    assert census.begin(1.0) == NOON - 60 * SECOND
    census.counted(NOON, None, alone=True)
    assert census.begin(2.0) == NOON - SECOND
    assert census.begin(5.0) == ALWAYS  # a worker may have brought an older claim back to life


def test_a_count_that_was_not_alone_leaves_time_for_claims_to_be_committed() -> None:
    census = Census()
    census.begin(0.0)
    census.counted(NOON, None, alone=False)
    assert census.begin(1.0) == NOON - 60 * SECOND


def test_the_start_of_a_count_never_goes_back() -> None:
    census = Census()
    census.begin(0.0)
    census.counted(NOON, None, alone=True)
    census.counted(NOON, NOON - 60 * SECOND, alone=True)
    assert census.begin(1.0) == NOON - SECOND
