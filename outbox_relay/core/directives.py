"""What is said about namespaces, workflows and tasks, as one sweep goes by it: placement, quotas, holds, live nodes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from outbox_relay.core.namespaces import PlacementKind, Scope, effective_quota
from outbox_relay.core.placement import DEFAULT_NAMESPACE, UNPLACED, Placement, Route, permitted_nodes, route_of_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, kw_only=True)
class Directives:
    """Everything that decides which rows may be claimed, and where they go, as it was read at one instant.

    ``placements`` and ``quotas`` (``max_in_flight``) name only the namespaces that have one. ``unreadable`` are
    namespaces whose directive this version does not understand: nothing of theirs is claimed. ``live_queues`` are the
    queues that live workers serve who report.
    """

    placements: Mapping[str, Placement] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    holds: Mapping[Scope, frozenset[str]] = field(default_factory=dict)
    live_queues: frozenset[str] = frozenset()
    default_quota: int | None = None
    namespace_queues: bool = True

    @property
    def empty(self) -> bool:
        """Whether nothing at all is said."""
        said = self.placements or self.quotas or self.unreadable or any(self.holds.values())
        return not said and self.default_quota is None

    @property
    def keeps_back(self) -> bool:
        """Whether there may be due rows that are not to be claimed, however much room there is."""
        return bool(self.pinned or self.unreadable or any(self.holds.values()))

    @property
    def limits(self) -> bool:
        """Whether any namespace has a quota."""
        return self.default_quota is not None or any(self.quota(name) is not None for name in self.quotas)

    def held(self, scope: Scope) -> frozenset[str]:
        """The values that are held in a scope."""
        return self.holds.get(scope, frozenset())

    @cached_property
    def closed(self) -> frozenset[str]:
        """The namespaces of which no row may be claimed."""
        return self.held(Scope.NAMESPACE) | self.unreadable

    @cached_property
    def pinned(self) -> frozenset[str]:
        """The namespaces whose rows may have to wait for a node."""
        return frozenset(name for name, one in self.placements.items() if one.kind is PlacementKind.PINNED)

    @cached_property
    def unserved(self) -> frozenset[str]:
        """The pinned namespaces none of whose nodes is live for any task queue."""
        served = {namespace for namespace, _, queue in (one.partition(" :") for one in self.openings) if queue}
        return self.pinned - served

    def quota(self, namespace: str) -> int | None:
        """How many rows of a namespace may be in flight, None for any number."""
        return effective_quota(self.quotas.get(namespace), self.default_quota)

    def nodes_for(self, route: Route) -> tuple[str | None, ...]:
        """The nodes that a row may go to now; see :func:`permitted_nodes`. The one decision about placement."""
        placement = self.placements.get(route.namespace, UNPLACED)
        return permitted_nodes(route, placement, self.live_queues, namespace_queues=self.namespace_queues)

    def keeps(self, route: Route, task: str, workflow_id: str | None) -> bool:
        """Whether a row is kept back: held, of a namespace that is closed, or without a node that it may go to."""
        return (
            route.namespace in self.closed
            or task in self.held(Scope.TASK)
            or workflow_id in self.held(Scope.WORKFLOW)
            or not self.nodes_for(route)
        )

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """What rows of pinned namespaces may be claimed, as :func:`opening` writes it; the others wait."""
        task_queues: dict[str, set[str]] = defaultdict(set)
        for name in self.live_queues:
            if (route := route_of_queue(name)) is not None:
                task_queues[route.namespace].add(route.task_queue)
        found: list[str] = []
        for namespace in sorted(self.pinned):
            served = task_queues[namespace if self.namespace_queues else DEFAULT_NAMESPACE]
            # "": plain SQL inserted the row, and it is claimed once to be given its queue
            routes = (Route(namespace, task_queue) for task_queue in ("", *sorted(served)))
            found.extend(opening(route) for route in routes if self.nodes_for(route))
            found.extend(opening(Route(namespace, "", node)) for node in self.placements[namespace].nodes)
        return tuple(found)


NOTHING = Directives()


def opening(route: Route) -> str:
    """Write what is asked of a pinned row: its node where it names one, else its task queue. No name has a space."""
    return f"{route.namespace} " + (f":{route.task_queue}" if route.node is None else f"@{route.node}")


@dataclass(slots=True)
class Spread:
    """Gives the rows of one route to its nodes in turn."""

    _turns: dict[tuple[str, str], int] = field(default_factory=dict)

    def choose(self, route: Route, nodes: tuple[str | None, ...]) -> str | None:
        """Return the node whose turn it is."""
        if len(nodes) == 1:
            return nodes[0]
        key = route.namespace, route.task_queue
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        return nodes[turn % len(nodes)]


def holds_of(pairs: Iterable[tuple[str, str]]) -> dict[Scope, frozenset[str]]:
    """Sort holds by their scope.

    Raises:
        ValueError: a scope that this version does not know; what it holds cannot be told.
    """
    found: dict[Scope, set[str]] = defaultdict(set)
    for scope, value in pairs:
        found[Scope(scope)].add(value)
    return {scope: frozenset(held) for scope, held in found.items()}
