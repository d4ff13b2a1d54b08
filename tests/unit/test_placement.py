"""Names, and the queue that a route leads to."""

from __future__ import annotations

import pytest

from outbox_relay.core.directives import Spread
from outbox_relay.core.namespaces import PlacementKind
from outbox_relay.core.placement import (
    Placement,
    Route,
    name_fault,
    permitted_nodes,
    queue_name,
    route_fault,
    route_of_queue,
)


@pytest.mark.parametrize("name", ["a", "A", "7", "acme", "box-7", "a_b", "0-", "a" * 63])
def test_a_good_name_has_no_fault(name: str) -> None:
    assert name_fault(name) is None


@pytest.mark.parametrize(
    "name", ["", "-a", "_a", "a b", "a:b", "a@b", "a.b", "a/b", "ä", "a\n", "٣", "a" * 64, "a\x00", "\ud835"]
)
def test_a_bad_name_is_told_the_rule(name: str) -> None:
    assert "1 to 63 ASCII letters" in (name_fault(name) or "")


@pytest.mark.parametrize("value", [None, 7, b"acme", True])
def test_a_name_is_a_string(value: object) -> None:
    assert name_fault(value) == f"it is a {type(value).__name__}, not a string"


@pytest.mark.parametrize(
    ("route", "own", "shared"),
    [
        (Route("default", "celery"), "celery", "celery"),
        (Route("default", "celery", "box-7"), "celery@box-7", "celery@box-7"),
        (Route("acme", "celery"), "acme:celery", "celery"),
        (Route("acme", "mail", "box-7"), "acme:mail@box-7", "mail@box-7"),
        (Route("default", "odd:name@x"), "odd:name@x", "odd:name@x"),
    ],
)
def test_queues_are_named_after_namespace_task_queue_and_node(route: Route, own: str, shared: str) -> None:
    assert queue_name(route) == own
    assert queue_name(route, namespace_queues=False) == shared


@pytest.mark.parametrize(
    ("route", "plain"),
    [(Route("default", "q"), True), (Route("default", "q", "n"), False), (Route("acme", "q"), False)],
)
def test_only_a_default_row_without_a_node_is_plain(route: Route, plain: bool) -> None:
    assert route.plain is plain


@pytest.mark.parametrize("queue", ["odd:name", "odd@name", "ü" * 127, "q" * 255])
def test_a_plain_row_keeps_whatever_name_the_app_chose(queue: str) -> None:
    assert route_fault(Route("default", queue)) is None


@pytest.mark.parametrize(
    ("route", "fault"),
    [
        (Route("a b", "q"), "namespace 'a b': a name has"),
        (Route("acme", "q", "box 7"), "node 'box 7': a name has"),
        (Route("acme", "odd:name"), "task queue 'odd:name': ':' and '@' are kept"),
        (Route("default", "odd@name", "box-7"), "task queue 'odd@name': ':' and '@' are kept"),
        (Route("acme", "q" * 251), "its name takes 256 bytes, and a broker allows 255"),
        (Route("acme", "ü" * 126), "its name takes 257 bytes"),  # bytes, not letters
        (Route("default", "q" * 256), "its name takes 256 bytes"),
    ],
)
def test_a_route_without_a_queue_says_why(route: Route, fault: str) -> None:
    assert fault in (route_fault(route) or "")


def test_shared_queues_have_no_use_for_the_rule_on_colons() -> None:
    assert route_fault(Route("acme", "odd:name"), namespace_queues=False) is None
    assert "are kept" in (route_fault(Route("acme", "odd:name", "n"), namespace_queues=False) or "")


def test_a_lone_surrogate_in_a_queue_name_is_measured_not_raised() -> None:
    assert route_fault(Route("acme", "\ud835")) is None


# -- where a row may go -----------------------------------------------------------------------------------------------

UNPLACED, PREFER, PINNED = PlacementKind


@pytest.mark.parametrize(
    ("placement", "node", "live", "nodes"),
    [
        (Placement(UNPLACED), None, "n1", (None,)),
        (Placement(UNPLACED), "n9", "", ("n9",)),
        (Placement(PREFER, ("n1", "n2", "n3")), None, "n1 n3 n4", ("n1", "n3")),
        (Placement(PREFER, ("n1", "n2")), None, "n4", (None,)),
        (Placement(PREFER, ("n1", "n2")), "n9", "n1", ("n9",)),
        (Placement(PINNED, ("n1", "n2")), None, "n2", ("n2",)),
        (Placement(PINNED, ("n1", "n2")), None, "n3", ()),
        (Placement(PINNED, ("n1", "n2")), "n2", "n1", ("n2",)),
        (Placement(PINNED, ("n1", "n2")), "n3", "n1 n3", ()),
    ],
)
@pytest.mark.parametrize("namespace", ["acme", "default"])
@pytest.mark.parametrize("own", [True, False])
def test_a_row_goes_where_its_placement_permits(
    *, placement: Placement, node: str | None, live: str, nodes: tuple[str | None, ...], namespace: str, own: bool
) -> None:
    queues = {queue_name(Route(namespace, "mail", one), namespace_queues=own) for one in live.split()}
    route = Route(namespace, "mail", node)
    assert permitted_nodes(route, placement, queues, namespace_queues=own) == nodes
    other = Route(namespace, "slow")  # which none of these workers serves
    waits = placement.kind is PINNED
    assert permitted_nodes(other, placement, queues, namespace_queues=own) == (() if waits else (None,))


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("acme:mail@n1", Route("acme", "mail", "n1")),
        ("mail@n1", Route("default", "mail", "n1")),
        ("mail", None),
        ("acme:mail", None),
        ("mail@", None),
        ("@n1", None),
        (":mail@n1", None),
        ("acme:@n1", None),
        ("mail@n 1", None),
        ("a:b:mail@n1", None),
        ("a@b@n1", None),
    ],
)
def test_the_name_of_a_nodes_queue_is_read_back(name: str, route: Route | None) -> None:
    assert route_of_queue(name) == route
    if route is not None:
        assert queue_name(route) == name


def test_rows_of_a_route_are_spread_evenly_over_its_nodes() -> None:
    spread = Spread()
    route, other = Route("acme", "mail"), Route("acme", "slow")
    assert [spread.choose(route, ("n1", "n2")) for _ in range(4)] == ["n1", "n2", "n1", "n2"]
    assert spread.choose(other, ("n1", "n2")) == "n1"
    assert spread.choose(route, (None,)) is None
