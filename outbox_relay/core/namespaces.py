"""What operators say about namespaces, workflows and tasks, as the database keeps it and as people are shown it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from datetime import datetime

UNLIMITED = -1
"""``max_in_flight`` of a namespace without a quota, whatever the default is. NULL: the default quota counts."""


class Scope(str, Enum):
    """What a hold is on: the column of ``outbox_hold``."""

    WORKFLOW = "workflow"
    NAMESPACE = "namespace"
    TASK = "task"


class PlacementKind(str, Enum):
    """How a namespace's nodes are meant: the column ``placement`` of ``outbox_namespace``."""

    UNPLACED = "unplaced"
    PREFER = "prefer"
    PINNED = "pinned"


class NamespaceState(str, Enum):
    """Whether a namespace takes new rows: the column ``state`` of ``outbox_namespace``."""

    ACTIVE = "active"
    DEPRECATED = "deprecated"


def effective_quota(max_in_flight: int | None, default: int | None) -> int | None:
    """Return how many rows of a namespace may be in flight at once, or None for any number."""
    quota = default if max_in_flight is None else max_in_flight
    return None if quota == UNLIMITED else quota


def unknown_namespace(name: str, known: Iterable[str]) -> str:
    """Say that a namespace is not known where they are closed, with the nearest one that is."""
    near = difflib.get_close_matches(name, list(known), n=1)
    cure = f"did you mean {near[0]!r}? If not," if near else "to add it,"
    return (
        f"namespace {name!r} is not known, and namespaces are closed here: {cure} "
        f"make it with 'outbox namespace set {name}', or set outbox_namespaces = 'open'"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceInfo:
    """A namespace as operators see it.

    ``quota`` is what counts: ``max_in_flight`` or the default one, None for any number. ``in_flight`` rows are claimed,
    ``due`` and ``parked`` ones pending. ``last_seen_at``: it had rows to run then, to about a minute.
    """

    namespace: str
    state: NamespaceState
    placement: PlacementKind
    nodes: tuple[str, ...]
    max_in_flight: int | None
    quota: int | None
    in_flight: int
    due: int
    parked: int
    oldest_due_at: datetime | None
    held: bool
    created_at: datetime
    last_seen_at: datetime | None

    @property
    def at_quota(self) -> bool:
        """Whether there is no room for another row, and one waits for it."""
        return self.quota is not None and self.in_flight >= self.quota and self.due > 0

    def waits_for_node(self, live: Container[str | None]) -> bool:
        """Whether rows wait, and none of the nodes that they are pinned to is among the ``live`` ones."""
        pinned = self.placement is PlacementKind.PINNED and not any(node in live for node in self.nodes)
        return pinned and self.due + self.parked > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldInfo:
    """A hold. Of what it is on, ``parked`` rows were due since, and are kept out of the claims' way."""

    scope: Scope
    value: str
    reason: str | None
    created_at: datetime
    parked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowInfo:
    """A workflow: how many rows are in each state, and what stands out.

    ``oldest_pending_at`` is when the pending row that waits longest was staged. ``run_ids`` and ``failed`` (row ids)
    name a few of them.
    """

    workflow_id: str
    counts: Mapping[str, int]
    total: int
    parked: int
    created_at: datetime
    oldest_pending_at: datetime | None
    last_settled_at: datetime | None
    run_ids: Sequence[str]
    failed: Sequence[int]
    held: bool
