"""Who lives: liveness that is not known is not death."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from outbox_relay.core.liveness import Liveness, Sign

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
BEAT = timedelta(seconds=10)
TTL = timedelta(seconds=35)


class Watch:
    """A relay that looks at the register; instants are seconds after noon, of the database and of the relay alike."""

    def __init__(self) -> None:
        self.liveness = Liveness(TTL, BEAT)

    def sees(self, at: float, seen: dict[str, float], *, read: float | None = None, drift: float = 0.0) -> str:
        """Look, ``read`` being when beacons were last read (None: just now); return the live workers' names."""
        signs = [Sign(name, (f"q@{name}",), NOON + timedelta(seconds=when)) for name, when in seen.items()]
        read_at = NOON + timedelta(seconds=at if read is None else read)
        now = NOON + timedelta(seconds=at + drift)
        return " ".join(sorted(self.liveness.look(signs, now=now, read_at=read_at, clock=at)))


def test_who_is_silent_while_beacons_are_read_is_dead() -> None:
    watch = Watch()
    assert watch.sees(0, {"a": 0, "b": 0}) == "a b"
    for at in (10, 20, 30):
        assert watch.sees(at, {"a": at, "b": 0}) == "a b"
    assert watch.sees(36, {"a": 35, "b": 0}) == "a"


def test_nobody_is_judged_dead_before_beacons_were_read_for_three_heartbeats() -> None:
    watch = Watch()
    assert watch.sees(0, {"a": -5, "b": -34}) == "a b"
    assert watch.sees(10, {"a": 5, "b": -34}) == "a b"
    assert watch.sees(20, {"a": 15, "b": -34}) == "a b"
    assert watch.sees(30, {"a": 25, "b": -34}) == "a"


def test_a_relay_that_starts_after_a_pause_of_all_relays_goes_by_who_was_fresh_then() -> None:
    watch = Watch()
    assert watch.sees(0, {"fresh": -600, "dead": -700}, read=-600) == "fresh"


def test_a_gap_in_reading_kills_nobody_and_neither_do_the_three_heartbeats_after_it() -> None:
    watch = Watch()
    for at in (0, 10, 20, 30, 40):
        watch.sees(at, {"a": at, "b": at})
    for at in (60, 70, 80, 90):
        assert watch.sees(at, {"a": 40, "b": 40}, read=40) == "a b"
    assert watch.sees(100, {"a": 100, "b": 40}) == "a b"
    assert watch.sees(110, {"a": 110, "b": 40}) == "a b"
    assert watch.sees(120, {"a": 120, "b": 40}) == "a b"
    assert watch.sees(130, {"a": 130, "b": 40}) == "a"


def test_a_relay_that_slept_waits_for_three_heartbeats_again() -> None:
    watch = Watch()
    for at in (0, 10, 20, 30, 40):
        watch.sees(at, {"a": at, "b": at})
    assert watch.sees(400, {"a": 400, "b": 40}) == "a b"
    assert watch.sees(410, {"a": 410, "b": 40}) == "a b"


def test_a_jump_of_the_databases_clock_kills_nobody() -> None:
    watch = Watch()
    for at in (0, 10, 20, 30, 40):
        watch.sees(at, {"a": at, "b": at})
    assert watch.sees(41, {"a": 40, "b": 40}, drift=3600, read=3641) == "a b"


def test_who_was_dead_before_a_gap_stays_dead() -> None:
    watch = Watch()
    for at in (0, 10, 20, 30, 40, 50):
        watch.sees(at, {"a": at, "b": 0})
    assert watch.sees(80, {"a": 50, "b": 0}, read=50) == "a"


def test_relays_that_never_read_judge_nobody() -> None:
    liveness = Liveness(TTL, BEAT)
    signs = [Sign("a", (), NOON)]
    for at in range(0, 600, 10):
        now = NOON + timedelta(seconds=at)
        assert set(liveness.look(signs, now=now, read_at=None, clock=float(at))) == {"a"}
