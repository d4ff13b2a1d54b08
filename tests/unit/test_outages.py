"""What is told of an outage."""

from __future__ import annotations

from outbox_relay.events import Event, Events
from outbox_relay.relay.outages import OneVoice, Outage


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


def test_an_outage_that_several_loops_meet_is_told_once() -> None:
    told: list[Event] = []
    events = Events()
    events.subscribe(told.append)
    relay = OneVoice(events)
    one, other = Outage(relay.voice(), "store"), Outage(relay.voice(), "store")
    broker = Outage(relay.voice(), "broker", broker="amqp://")
    one.goes_on("gone")
    other.goes_on("gone")
    one.is_over()
    broker.goes_on("gone, too")
    one.goes_on("gone again")
    one.is_over()
    assert [event.name for event in told] == ["store.lost", "broker.lost"]
    other.is_over()
    broker.is_over()
    assert [event.name for event in told] == ["store.lost", "broker.lost", "store.back", "broker.back"]


def test_what_is_no_outage_is_told_as_it_comes() -> None:
    told: list[Event] = []
    events = Events()
    events.subscribe(told.append)
    OneVoice(events).voice().emit("broker.blocked", broker="amqp://", reason="memory")
    assert [event.name for event in told] == ["broker.blocked"]
