"""How the loops of a relay wait, wake, and end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from outbox_relay.events import Event
from outbox_relay.relay.health import Pulse
from outbox_relay.relay.loops import Loop
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable


def make(tick: Callable[[], float], **options: Any) -> tuple[Loop, list[BaseException]]:
    deaths: list[BaseException] = []
    loop = Loop("test", tick, on_death=lambda _, error: deaths.append(error), pulse=Pulse(), **options)
    return loop, deaths


def test_a_ring_ends_the_wait() -> None:
    ticks: list[float] = []
    loop, _ = make(lambda: ticks.append(time.monotonic()) or 60.0)
    loop.start()
    eventually(lambda: len(ticks) == 1, 5)
    loop.ring()
    eventually(lambda: len(ticks) == 2, 5)
    loop.stop()
    assert loop.join(5)


def test_a_ring_that_comes_while_a_tick_runs_is_not_lost() -> None:
    """The wake is a level, not an edge (lesson 32)."""
    inside, go_on = threading.Event(), threading.Event()
    ticks = []

    def tick() -> float:
        ticks.append(1)
        inside.set()
        go_on.wait(5)
        return 60.0

    loop, _ = make(tick)
    loop.start()
    inside.wait(5)
    loop.ring()
    go_on.set()
    eventually(lambda: len(ticks) == 2, 5)
    loop.stop()
    assert loop.join(5)


class LateBell(threading.Event):
    """Somebody does something just after the loop has looked whether it was rung for."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then: Callable[[], None] | None = then

    def is_set(self) -> bool:
        found = super().is_set()
        then, self._then = self._then, None
        if then is not None:
            then()
        return found


def test_a_ring_between_two_looks_is_not_lost_and_has_its_echo() -> None:
    ticks: list[float] = []
    loop, _ = make(lambda: ticks.append(time.monotonic()) or 60.0, echo=0.1)
    loop._bell = LateBell(loop.ring)
    loop.start()
    eventually(lambda: len(ticks) == 3, 5)
    loop.stop()
    assert loop.join(5)


def test_a_loop_that_is_told_to_stop_between_two_looks_does_not_wait_first() -> None:
    loop, _ = make(lambda: 60.0)
    loop._bell = LateBell(loop.stop)
    loop.start()
    assert loop.join(5)


def test_a_ring_is_followed_by_one_more_tick_for_what_the_throttle_held_back() -> None:
    ticks: list[float] = []
    loop, _ = make(lambda: ticks.append(time.monotonic()) or 60.0, echo=0.1)
    loop.start()
    eventually(lambda: len(ticks) == 1, 5)
    loop.ring()
    eventually(lambda: len(ticks) == 3, 5)
    assert ticks[2] - ticks[1] >= 0.09
    loop.stop()
    assert loop.join(5)


def test_a_loop_that_dies_says_so_after_it_has_drained() -> None:
    drained = []

    def tick() -> float:
        raise ZeroDivisionError

    loop, deaths = make(tick, drain=lambda: drained.append(1))
    loop.start()
    assert loop.join(5)
    assert drained == [1]
    assert isinstance(deaths[0], ZeroDivisionError)


def test_a_loop_that_does_not_come_round_is_stuck() -> None:
    now = [0.0]
    pulse = Pulse(lambda: now[0])
    pulse.beat("sweep", 10)
    assert pulse.stuck() == []
    now[0] = 11.0
    assert pulse.stuck() == ["sweep"]


def test_readiness_knows_what_is_away_and_what_came_back() -> None:
    pulse = Pulse()
    assert pulse.troubles() == ["the relay is starting"]
    pulse.on_event(Event("relay.started", {"instance": "1", "hostname": "box", "loops": "sweep"}))
    assert pulse.troubles() == []
    pulse.on_event(Event("broker.lost", {"broker": "amqp://", "error": "refused"}))
    assert "away" in pulse.troubles()[0]
    pulse.on_event(Event("broker.back", {"broker": "amqp://"}))
    assert pulse.troubles() == []
