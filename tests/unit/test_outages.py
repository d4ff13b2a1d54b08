"""What is told of an outage."""

from __future__ import annotations

from outbox_relay.events import Event, Events
from outbox_relay.relay.outages import Outage


def test_an_error_without_a_text_is_told_by_its_kind() -> None:
    told: list[Event] = []
    events = Events()
    events.subscribe(told.append)
    Outage(events, "store").goes_on(TimeoutError())
    assert str(told[0]) == "the database is away: TimeoutError()"


def test_an_outage_is_told_when_it_begins_and_when_it_ends() -> None:
    told: list[Event] = []
    events = Events()
    events.subscribe(told.append)
    outage = Outage(events, "store")
    outage.is_over()
    assert told == []
    for _ in range(3):
        assert outage.goes_on("gone") > 0
    outage.is_over()
    outage.is_over()
    assert [event.name for event in told] == ["store.lost", "store.back"]
