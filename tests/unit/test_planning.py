"""How a sweep shares its places, and how far back it looks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_relay.core.planning import ALWAYS, Watermark, share

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("due", "places", "shares"),
    [
        ({}, 10, {}),
        ({"a": 5}, 10, {"a": 5}),
        ({"a": 50}, 10, {"a": 10}),
        ({"big": 500, "small": 1}, 8, {"big": 7, "small": 1}),
        ({"a": 100, "b": 100}, 9, {"a": 5, "b": 4}),
        ({"a": 100, "b": 100, "c": 2}, 30, {"a": 14, "b": 14, "c": 2}),
        ({"a": 3, "b": 3, "c": 3, "d": 3}, 2, {"a": 1, "b": 1}),
        ({"a": 0, "b": 2}, 4, {"b": 2}),
        ({"a": 9, "b": 9, "c": 9, "d": 9}, 6, {"a": 2, "b": 2, "c": 1, "d": 1}),
        ({"a": 5, "b": 1, "c": 1, "d": 9}, 15, {"a": 5, "b": 1, "c": 1, "d": 8}),
        ({"a": 1, "b": 9, "c": 9}, 9, {"a": 1, "b": 4, "c": 4}),
        ({"a": 1}, 0, {}),
    ],
)
def test_places_are_shared(due: dict[str, int], places: int, shares: dict[str, int]) -> None:
    assert share(due, places) == shares


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 50), max_size=30), st.integers(0, 100))
def test_a_plan_is_full_or_takes_everything_and_is_fair(due: dict[str, int], places: int) -> None:
    shares = share(due, places)
    assert sum(shares.values()) == min(places, sum(due.values()))
    assert all(0 < rows <= due[name] for name, rows in shares.items())
    active = [name for name, rows in due.items() if rows]
    assert places < len(active) or set(shares) == set(active)  # nobody is left out while there is a place for each
    waiting = [shares.get(name, 0) for name, rows in due.items() if rows > shares.get(name, 0)]
    if waiting and shares:
        assert max(shares.values()) - min(waiting) <= 1


def test_the_first_look_is_a_full_one_and_the_next_ones_are_not() -> None:
    watermark = Watermark(least=0.25)
    assert watermark.begin(0.0)
    watermark.full_look_took(0.0, 0.001)
    watermark.looked(NOON, {})
    assert not watermark.begin(0.2)
    assert watermark.since("a") == NOON - SECOND
    assert watermark.begin(0.25)
    assert watermark.since("a") == ALWAYS


def test_a_reset_makes_the_next_look_a_full_one() -> None:
    watermark = Watermark()
    watermark.begin(0.0)
    watermark.looked(NOON, {})
    watermark.reset()
    assert watermark.begin(0.1)


def test_a_reset_during_a_full_look_stands() -> None:
    watermark = Watermark()
    watermark.begin(0.0)
    watermark.reset()
    watermark.full_look_took(0.0, 0.001)
    assert watermark.begin(0.1)


def test_a_reset_while_the_next_full_look_is_planned_stands() -> None:
    watermark = Watermark()

    class Ended(float):
        """Another thread resets in the midst of the calculation."""

        def __sub__(self, begun: float) -> float:
            watermark.reset()
            return float(self) - begun

    watermark.begin(0.0)
    watermark.full_look_took(0.0, Ended(0.001))
    assert watermark.begin(0.1)


def test_a_slow_full_look_comes_less_often() -> None:
    watermark = Watermark(duty=0.05)
    watermark.begin(0.0)
    watermark.full_look_took(0.0, 1.0)
    assert not watermark.begin(19.0)
    assert watermark.begin(20.0)


def test_a_namespace_with_more_rows_is_looked_at_from_where_it_was_left() -> None:
    watermark = Watermark()
    watermark.begin(0.0)
    watermark.looked(NOON, {"a": NOON - 60 * SECOND, "b": None})
    assert watermark.since("a") == NOON - 61 * SECOND
    assert watermark.since("b") == ALWAYS
    assert watermark.since("c") == NOON - SECOND


def test_a_mark_never_goes_back() -> None:
    watermark = Watermark()
    watermark.begin(0.0)
    watermark.looked(NOON, {"a": NOON})
    watermark.looked(NOON - 60 * SECOND, {"a": NOON - 60 * SECOND})
    assert watermark.since("a") == watermark.since("b") == NOON - SECOND


def test_what_was_not_looked_at_is_not_taken_for_empty() -> None:
    watermark = Watermark()
    watermark.begin(0.0)
    watermark.looked(NOON, {"a": NOON}, everywhere=False)
    assert watermark.since("a") == NOON - SECOND
    assert watermark.since("b") == ALWAYS
