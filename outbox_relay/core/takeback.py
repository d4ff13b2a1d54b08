"""Which messages that wait in a queue are taken back: those that may not, or cannot, run where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.core.namespaces import PlacementKind
from outbox_relay.core.placement import UNPLACED, Route, queue_name, route_of_queue

if TYPE_CHECKING:
    from outbox_relay.core.directives import Directives


def is_misplaced(route: Route, queue: str, directives: Directives) -> bool:
    """Say whether a message of ``route`` (with the node that the row itself names) is to be taken out of ``queue``.

    It is where the namespace is pinned and the queue is not one of its nodes, and where the queue's node is dead and
    there is another way for the row. What waits for a node, or for the pool, waits there as well as anywhere. A queue
    that plain messages share is never touched, nor one of a namespace whose directive cannot be read.
    """
    if route.namespace in directives.unreadable or not is_own(route, queue, directives):
        return False
    there = route_of_queue(queue)
    node = None if there is None else there.node
    ways = directives.nodes_for(route)
    if node in ways:
        return False
    placement = directives.placements.get(route.namespace, UNPLACED)
    outside = placement.kind is PlacementKind.PINNED and node not in placement.nodes
    if node is None:
        return outside
    return outside or (queue not in directives.live_queues and bool(ways))


def is_own(route: Route, queue: str, directives: Directives) -> bool:
    """Whether ``queue`` is named after a route's namespace or a node, so that no plain message can be meant for it."""
    there = route_of_queue(queue)
    at = Route(route.namespace, route.task_queue, None if there is None else there.node)
    name = queue_name(at, namespace_queues=directives.namespace_queues)
    return name == queue and name != route.task_queue
