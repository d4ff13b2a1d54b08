"""Which messages are taken out of a queue: those that may not, or cannot, run where they are."""

from __future__ import annotations

import pytest

from outbox_relay.core.directives import Directives
from outbox_relay.core.namespaces import PlacementKind
from outbox_relay.core.placement import Placement, Route
from outbox_relay.core.takeback import is_misplaced

PREFER, PINNED = PlacementKind.PREFER, PlacementKind.PINNED
POOL, N1, N2 = "acme:mail", "acme:mail@n1", "acme:mail@n2"


def misplaced(queue: str, placement: Placement | None, *live: str, node: str | None = None) -> bool:
    placements = {} if placement is None else {"acme": placement}
    directives = Directives(placements=placements, live_queues=frozenset(live))
    return is_misplaced(Route("acme", "mail", node), queue, directives)


@pytest.mark.parametrize(
    ("queue", "placement", "live", "taken"),
    [
        (POOL, None, (), False),
        (POOL, Placement(PREFER, ("n1",)), (N1,), False),  # the pool may run it as well
        (POOL, Placement(PINNED, ("n1",)), (), True),
        (POOL, Placement(PINNED, ("n1",)), (N1,), True),
        (N1, Placement(PREFER, ("n1",)), (N1,), False),
        (N1, Placement(PREFER, ("n1",)), (), True),
        (N1, Placement(PREFER, ("n1", "n2")), (N2,), True),
        (N1, Placement(PREFER, ("n2",)), (N1,), False),  # it preferred n1 once, and n1 lives
        (N1, None, (N1,), False),
        (N1, None, (), True),
        (N1, Placement(PINNED, ("n1",)), (N1,), False),
        (N1, Placement(PINNED, ("n1",)), (), False),  # it waits there as well as in the outbox
        (N1, Placement(PINNED, ("n1", "n2")), (N2,), True),
        (N1, Placement(PINNED, ("n2",)), (N1,), True),
        (N1, Placement(PINNED, ("n2",)), (), True),
    ],
)
def test_a_row_that_names_no_node(queue: str, placement: Placement, live: tuple[str, ...], *, taken: bool) -> None:
    assert misplaced(queue, placement, *live) is taken


@pytest.mark.parametrize("placement", [None, Placement(PREFER, ("n2",)), Placement(PINNED, ("n1", "n2"))])
@pytest.mark.parametrize("live", [(), (N1,), (N2,)])
def test_a_row_that_names_its_node_waits_for_it(placement: Placement | None, live: tuple[str, ...]) -> None:
    assert not misplaced(N1, placement, *live, node="n1")


def test_a_row_that_names_a_node_outside_of_those_its_namespace_is_pinned_to_must_not_run_there() -> None:
    assert misplaced(N1, Placement(PINNED, ("n2",)), N1, node="n1")


@pytest.mark.parametrize(
    ("route", "queue"),
    [
        (Route("default", "mail"), "mail"),  # the shop's own
        (Route("acme", "mail"), "mail"),
        (Route("acme", "mail"), "globex:mail"),
        (Route("acme", "mail"), "acme:print@n1"),
        (Route("default", "acme:mail"), POOL),  # a queue of the shop's that looks like one of the outbox's
    ],
)
def test_a_queue_that_is_not_the_rows_own_is_left_alone(route: Route, queue: str) -> None:
    pinned = {route.namespace: Placement(PINNED, ("n9",))}
    assert not is_misplaced(route, queue, Directives(placements=pinned))


def test_a_queue_that_namespaces_share_is_left_alone_but_for_a_nodes() -> None:
    pinned = {"acme": Placement(PINNED, ("n2",))}
    shared = Directives(placements=pinned, namespace_queues=False)
    assert not is_misplaced(Route("acme", "mail"), "mail", shared)
    assert is_misplaced(Route("acme", "mail"), "mail@n1", shared)


def test_a_namespace_whose_placement_cannot_be_read_is_left_alone() -> None:
    directives = Directives(unreadable=frozenset({"acme"}))
    assert not is_misplaced(Route("acme", "mail"), N1, directives)
