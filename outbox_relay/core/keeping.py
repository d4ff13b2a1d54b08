"""What keeps a pending row back, in words: holds, its placement, its namespace's quota, the turn of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_relay.core.namespaces import NamespaceState, PlacementKind
from outbox_relay.core.placement import Placement, Route, permitted_nodes, queue_name
from outbox_relay.core.wording import age, brief, counted, instant, names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from outbox_relay.core.namespaces import HoldInfo, NamespaceInfo
    from outbox_relay.core.processes import WorkerInfo
    from outbox_relay.core.row import RowDetail

AHEAD_MOST = 10_000
"""Rows ahead of one are counted no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is said about a row's namespace, workflow and task, and who is due before it.

    ``namespace`` None: nobody has registered it yet. ``ahead`` rows of its own namespace are due and come first;
    ``others`` is the number of other namespaces with due rows.
    """

    namespace: NamespaceInfo | None = None
    holds: Sequence[HoldInfo] = ()
    ahead: int = 0
    others: int = 0
    namespace_queues: bool = True


def kept_back(row: RowDetail, kept: Kept, workers: Sequence[WorkerInfo], now: datetime) -> tuple[str, str] | None:
    """Say what keeps a due row back and what would move it; None where nothing does.

    Each is a clause that follows "it"; a command in the second is written ``'outbox …'``.
    """
    return _held(kept, now) or _unplaced(row, kept, workers, now) or _at_quota(kept)


def holds(kept: Kept, now: datetime) -> str:
    """Name the holds on a row, since when they are, and why."""
    said = []
    for one in kept.holds:
        why = "" if one.reason is None else f" ({brief(one.reason)})"
        said.append(f"{one.scope.value} {one.value} since {instant(one.created_at)}, {age(one.created_at, now)}{why}")
    return " and by ".join(said)


def standing(kept: Kept) -> str:
    """Say what is special about the row's namespace though it keeps nothing back; a clause of its own, or nothing."""
    if kept.namespace is None or kept.namespace.state is NamespaceState.ACTIVE:
        return ""
    return f"; its namespace {kept.namespace.namespace} is deprecated: it takes no new rows, and runs what it has"


def line(row: RowDetail, kept: Kept) -> str:
    """Say what a row that nothing keeps back waits for; it follows "waits"."""
    before = []
    if kept.ahead:
        more = "or more " if kept.ahead >= AHEAD_MOST else ""
        before.append(f"{counted(kept.ahead, 'row')} {more}of namespace {row.namespace}")
    if kept.others:
        whose = "another namespace" if kept.others == 1 else f"{kept.others:,} other namespaces"
        before.append(f"those of {whose}" if kept.ahead else f"rows of {whose}")
    return f"its turn, behind {' and '.join(before)}" if before else "for a relay"


def _held(kept: Kept, now: datetime) -> tuple[str, str] | None:
    if not kept.holds:
        return None
    ends = " and ".join(f"'outbox resume --{one.scope.value} {one.value}'" for one in kept.holds)
    return f"is held by {holds(kept, now)}", f"{ends} {'let' if len(kept.holds) > 1 else 'lets'} it go on"


def _unplaced(row: RowDetail, kept: Kept, workers: Sequence[WorkerInfo], now: datetime) -> tuple[str, str] | None:
    one = kept.namespace
    if one is None or one.placement is not PlacementKind.PINNED:
        return None
    route = Route(row.namespace, row.task_queue, row.node)
    live = {queue for worker in workers if worker.live for queue in worker.queues}
    if permitted_nodes(route, Placement(one.placement, one.nodes), live, namespace_queues=kept.namespace_queues):
        return None
    pinned = f"the nodes {names(one.nodes)} that its namespace {one.namespace} is pinned to"
    if row.node is not None:
        wider = " ".join((*one.nodes, row.node))
        why = f"waits, because its own node {row.node} is not one of {pinned}"
        return why, f"'outbox placement pin {one.namespace} {wider}' lets it go there"
    seen = ", ".join(_last_seen(node, row, kept, workers, now) for node in one.nodes)
    why = f"waits for a worker on one of {pinned}; none lives that serves its task queue {row.task_queue} ({seen})"
    moves = (
        f"a worker with '--outbox-node {one.nodes[0]}' brings it on, or 'outbox placement clear {one.namespace}' "
        "lets it go anywhere"
    )
    return why, moves


def _last_seen(node: str, row: RowDetail, kept: Kept, workers: Sequence[WorkerInfo], now: datetime) -> str:
    queue = queue_name(Route(row.namespace, row.task_queue, node), namespace_queues=kept.namespace_queues)
    serving = [worker for worker in workers if queue in worker.queues]
    there = [worker for worker in workers if worker.node == node]
    if serving:
        return f"{node} last seen {age(max(worker.last_seen_at for worker in serving), now)}"
    if any(worker.live for worker in there):
        return f"{node} lives and does not serve that queue"
    if there:
        return f"{node} last seen {age(max(worker.last_seen_at for worker in there), now)}"
    return f"{node} never seen"


def _at_quota(kept: Kept) -> tuple[str, str] | None:
    one = kept.namespace
    if one is None or one.quota is None or one.in_flight < one.quota:
        return None
    default = " by default" if one.max_in_flight is None else ""
    why = (
        f"waits, because the quota of its namespace {one.namespace} is used up: {one.in_flight:,} of {one.quota:,}"
        f"{default} are in flight"
    )
    return why, f"it is claimed in its turn when one of them ends; 'outbox quota {one.namespace} N' changes the quota"
