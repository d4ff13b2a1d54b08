"""Whether a relay has listened long enough to judge anybody's silence."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from outbox_relay.relay.reading import Reading

BEAT = timedelta(seconds=10)
THREE = 3 * BEAT
NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    def reads(self, reading: Reading, seconds: int, step: int = 1) -> None:
        for _ in range(0, seconds, step):
            self.now += step
            reading.goes_on()


def test_silence_means_something_only_after_three_beacons_without_a_gap() -> None:
    clock = Clock()
    reading = Reading(BEAT, clock)
    assert not reading.lasts(THREE)
    clock.reads(reading, 30)
    assert not reading.lasts(THREE)
    clock.reads(reading, 2)
    assert reading.lasts(THREE)


def test_a_lost_connection_is_a_gap() -> None:
    clock = Clock()
    reading = Reading(BEAT, clock)
    clock.reads(reading, 60)
    reading.breaks()
    assert not reading.lasts(THREE)
    clock.reads(reading, 10)
    assert not reading.lasts(THREE)


def test_a_reader_that_did_not_come_round_has_a_gap_before_and_after_it_comes_back() -> None:
    clock = Clock()
    reading = Reading(BEAT, clock)
    clock.reads(reading, 60)
    clock.now += 21
    assert not reading.lasts(THREE)
    clock.reads(reading, 1)
    assert not reading.lasts(THREE)


def test_a_jump_of_the_database_clock_is_a_gap_and_its_drift_is_none() -> None:
    clock = Clock()
    reading = Reading(BEAT, clock)
    clock.reads(reading, 60)
    for seconds in (0, 1, 2):
        clock.reads(reading, 1)
        reading.compare(NOON + timedelta(seconds=seconds * 1.01), clock())
    assert reading.lasts(THREE)
    clock.reads(reading, 1)
    reading.compare(NOON + timedelta(hours=1), clock())
    assert not reading.lasts(THREE)


def test_an_answer_that_took_long_says_little_about_the_clock() -> None:
    clock = Clock()
    reading = Reading(BEAT, clock)
    clock.reads(reading, 60)
    reading.compare(NOON, clock())
    asked_at = clock()
    clock.reads(reading, 16)
    reading.compare(NOON + timedelta(seconds=16), asked_at)
    assert reading.lasts(THREE)
