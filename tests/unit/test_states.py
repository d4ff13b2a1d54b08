"""What keeps rows back is said when it changes, and not each time it is met."""

from __future__ import annotations

import pytest

from outbox_relay.core.directives import NOTHING, Directives
from outbox_relay.core.namespaces import PlacementKind, Scope
from outbox_relay.core.placement import Placement
from outbox_relay.events import Events
from outbox_relay.relay.states import CALM, States

PINNED = {"acme": Placement(PlacementKind.PINNED, ("n1",))}


class Ear:
    """Hears what is said, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard: list[tuple[str, str]] = []
        events = Events()
        events.subscribe(lambda event: self.heard.append((event.name, str(event.fields["names"]))))
        self.states = States(events, lambda: self.now)


@pytest.fixture
def ear() -> Ear:
    return Ear()


def test_a_namespace_that_stays_at_its_quota_is_said_once(ear: Ear) -> None:
    for _ in range(100):
        ear.now += 0.02
        ear.states.counted(frozenset({"acme"}))
    assert ear.heard == [("quota.reached", "acme")]


def test_one_that_comes_and_goes_is_said_once_and_free_when_it_has_been_for_a_while(ear: Ear) -> None:
    for number in range(100):
        ear.now += 1.0
        ear.states.counted(frozenset({"acme"} if number % 2 else set()))
    assert ear.heard == [("quota.reached", "acme")]
    for _ in range(int(CALM) + 2):
        ear.now += 1.0
        ear.states.counted(frozenset())
    assert ear.heard == [("quota.reached", "acme"), ("quota.free", "acme")]


def test_many_namespaces_are_one_line(ear: Ear) -> None:
    ear.states.counted(frozenset(f"ns{number}" for number in range(8)))
    assert ear.heard == [("quota.reached", "ns0, ns1, ns2, ns3, ns4 and 3 more")]


def test_holds_are_said_as_they_begin_and_end(ear: Ear) -> None:
    held = Directives(holds={Scope.WORKFLOW: frozenset({"w1"})})
    for said in (held, held, Directives(holds={Scope.WORKFLOW: frozenset({"w1"})}), NOTHING):
        ear.states.directed(said)
    assert ear.heard == [("hold.began", "w1"), ("hold.ended", "w1")]


def test_a_pinned_namespace_is_said_to_wait_and_to_be_served(ear: Ear) -> None:
    waiting = Directives(placements=PINNED)
    served = Directives(placements=PINNED, live_queues=frozenset({"acme:mail@n1"}))
    for said in (waiting, Directives(placements=PINNED), served, waiting, NOTHING):
        ear.states.directed(said)
    assert [name for name, _ in ear.heard] == ["placement.waits", "placement.served", "placement.waits"]


def test_what_cannot_be_read_is_said(ear: Ear) -> None:
    ear.states.directed(Directives(unreadable=frozenset({"acme"})))
    assert ear.heard == [("placement.unreadable", "acme")]
