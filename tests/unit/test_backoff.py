"""Backoff saturates: any number of failures has a delay, and none is above the maximum."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_relay.core.backoff import Backoff

PLAIN = Backoff(timedelta(seconds=10), 2.0, timedelta(hours=1))


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 10), (1, 20), (2, 40), (8, 2560), (9, 3600), (10, 3600), (1_000, 3600), (5_000, 3600), (10**9, 3600)],
)
def test_delay_grows_by_the_multiplier_up_to_the_maximum(failures: int, seconds: int) -> None:
    assert PLAIN.delay(failures) == timedelta(seconds=seconds)


def test_a_negative_count_is_the_first_failure() -> None:
    assert PLAIN.delay(-3) == PLAIN.delay(0)


def test_a_multiplier_of_one_is_a_constant_delay() -> None:
    assert Backoff(timedelta(seconds=5), 1.0, timedelta(hours=1)).delay(5_000) == timedelta(seconds=5)


@pytest.mark.parametrize(("draw", "seconds"), [(0.0, 9.0), (0.5, 10.0), (0.75, 10.5)])
def test_jitter_spreads_both_ways(draw: float, seconds: float) -> None:
    assert Backoff(timedelta(seconds=10), 2.0, timedelta(hours=1), 0.1).delay(0, draw) == timedelta(seconds=seconds)


seconds = st.floats(0.001, 3e8).map(lambda value: timedelta(seconds=value))
backoffs = st.builds(Backoff, seconds, st.floats(1, 1e6), seconds, st.floats(0, 1))


@given(backoffs, st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_delay_is_never_negative_and_never_above_the_maximum(backoff: Backoff, failures: int, draw: float) -> None:
    assert timedelta(0) <= backoff.delay(failures, draw) <= backoff.maximum


@given(failures=st.integers(0, 6_000))
def test_without_jitter_no_delay_is_shorter_than_the_one_before(failures: int) -> None:
    assert PLAIN.delay(failures) <= PLAIN.delay(failures + 1)
