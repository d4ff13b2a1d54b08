"""Names of namespaces, nodes and queues, and which queue a row goes to: the one decision that every path uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_relay.core.namespaces import PlacementKind

if TYPE_CHECKING:
    from collections.abc import Container

DEFAULT_NAMESPACE = "default"
MAX_QUEUE_BYTES = 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z")


def name_fault(value: object) -> str | None:
    """Say what is wrong with a namespace's or a node's name, or return None where it is fine.

    A name has 1 to 63 letters, digits, ``_`` and ``-``, and starts with a letter or a digit (ASCII).
    """
    if not isinstance(value, str):
        return f"it is a {type(value).__name__}, not a string"
    if not _NAME.match(value):
        return "a name has 1 to 63 ASCII letters, digits, '_' and '-', and starts with a letter or a digit"
    return None


@dataclass(frozen=True, slots=True)
class Route:
    """Where a row's message goes: a namespace, a task queue within it, and perhaps a node."""

    namespace: str
    task_queue: str
    node: str | None = None

    @property
    def plain(self) -> bool:
        """Whether the row goes where Celery itself would have sent it."""
        return self.namespace == DEFAULT_NAMESPACE and self.node is None


def queue_name(route: Route, *, namespace_queues: bool = True) -> str:
    """Return the broker queue of a route: ``{namespace}:{task_queue}[@{node}]``.

    ``default`` has no prefix. With ``namespace_queues`` false, all namespaces share the task queue's own queue.
    """
    shared = not namespace_queues or route.namespace == DEFAULT_NAMESPACE
    name = route.task_queue if shared else f"{route.namespace}:{route.task_queue}"
    return name if route.node is None else f"{name}@{route.node}"


def route_fault(route: Route, *, namespace_queues: bool = True) -> str | None:
    """Say why no queue can be named after a route, or return None where one can."""
    for what, value in (("namespace", route.namespace), ("node", route.node)):
        if value is not None and (fault := name_fault(value)):
            return f"{what} {value!r}: {fault}"
    name = queue_name(route, namespace_queues=namespace_queues)
    if name != route.task_queue and (":" in route.task_queue or "@" in route.task_queue):
        return f"task queue {route.task_queue!r}: ':' and '@' are kept for namespace and node"
    if (size := len(name.encode("utf-8", "surrogatepass"))) > MAX_QUEUE_BYTES:
        return f"queue {name!r}: its name takes {size} bytes, and a broker allows {MAX_QUEUE_BYTES}"
    return None


@dataclass(frozen=True, slots=True)
class Placement:
    """A namespace's directive: how its ``nodes`` are meant."""

    kind: PlacementKind
    nodes: tuple[str, ...] = ()


UNPLACED = Placement(PlacementKind.UNPLACED)


def permitted_nodes(
    route: Route, placement: Placement, live_queues: Container[str], *, namespace_queues: bool = True
) -> tuple[str | None, ...]:
    """Say to which nodes a row of ``route`` may go now: any one of them is as good as another.

    None stands for the queue of the pool; an empty answer means that the row waits. ``live_queues`` are the queues that
    live workers serve who report. A node that the row itself names always wins, but never takes the row out of the
    nodes that its namespace is pinned to. A row without a task queue (plain SQL inserted it, and no relay has seen it)
    may be claimed so that it gets one; then this is asked again.
    """
    pinned = placement.kind is PlacementKind.PINNED
    if route.node is not None:
        return () if pinned and route.node not in placement.nodes else (route.node,)
    if placement.kind is PlacementKind.UNPLACED or not route.task_queue:
        return (None,)
    live = tuple(
        node
        for node in placement.nodes
        if queue_name(Route(route.namespace, route.task_queue, node), namespace_queues=namespace_queues) in live_queues
    )
    return live or (() if pinned else (None,))


def route_of_queue(name: str) -> Route | None:
    """Read the name of a node's queue; None where it is another's. Where queues are shared, ``default`` is anybody."""
    served, at, node = name.rpartition("@")
    if not at or name_fault(node):
        return None
    namespace, colon, task_queue = served.rpartition(":")
    if ":" in namespace or "@" in served or not task_queue or (colon and not namespace):
        return None
    return Route(namespace if colon else DEFAULT_NAMESPACE, task_queue, node)
