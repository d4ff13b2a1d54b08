"""Namespaces, holds and workflows, as operators set and see them."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_relay.core.keeping import AHEAD_MOST, Kept
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.namespaces import (
    HoldInfo,
    NamespaceInfo,
    NamespaceState,
    PlacementKind,
    Scope,
    WorkflowInfo,
    effective_quota,
)
from outbox_relay.store.parking import BATCH, unpark
from outbox_relay.store.sql import values
from outbox_relay.store.statements import governing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from outbox_relay.core.row import RowDetail
    from outbox_relay.store.engine import Database


NOTE_EVERY = timedelta(minutes=1)
DUTY = 0.02  # the part of the time that looks after namespaces that nobody registered may take


class Governing:
    """What operators say about namespaces, workflows and tasks. Each method is a transaction of its own.

    ``look_every`` is the time between two looks after namespaces that nobody registered.
    """

    def __init__(self, database: Database, look_every: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = database
        self._look_every = look_every.total_seconds()
        self._clock = clock
        self._met: set[str] = set()
        self.waiting: frozenset[str] = frozenset()
        """Namespaces with rows that were left to a transaction which is still open, as of the last look."""
        self._note_at = self._look_at = float("-inf")

    # -- namespaces --------------------------------------------------------------------------------------------------

    def namespaces(self, default_quota: int | None, name: str | None = None) -> list[NamespaceInfo]:
        """All registered namespaces by name, or the one that is named (a list of one, or of none)."""
        statement = governing.namespaces(self._db.tables, name is not None)
        with self._db.begin(reads=True) as connection:
            found = connection.execute(statement, {} if name is None else {"name": name}).mappings()
            return [_namespace(one, default_quota) for one in found]

    def limited(self, default_quota: int | None) -> list[NamespaceInfo]:
        """The namespaces, where one of them has a quota or is pinned; else none, at little cost."""
        if default_quota is None:
            with self._db.begin(reads=True) as connection:
                if connection.execute(governing.any_limit(self._db.tables)).first() is None:
                    return []
        return self.namespaces(default_quota)

    def names(self) -> list[str]:
        """The names of all registered namespaces."""
        with self._db.begin(reads=True) as connection:
            return [str(one) for one in connection.execute(governing.namespace_names(self._db.tables)).scalars()]

    def set_namespace(self, name: str, *, create: bool, **columns: Any) -> bool:
        """Set ``placement``, ``nodes``, ``max_in_flight`` or ``state``, and leave the others. False: there is none.

        With ``create`` a namespace that is missing is made.
        """
        if "nodes" in columns:
            columns["nodes"] = json.dumps(list(columns["nodes"]))
        given = {key: getattr(value, "value", value) for key, value in columns.items()}
        which = frozenset(given)
        with self._db.begin() as connection:
            if create:
                connection.execute(
                    governing.put_namespace(self._db.tables, self._db.dialect, which), {"name": name, **given}
                )
                return True
            if not which:
                found = connection.execute(governing.namespaces(self._db.tables, True), {"name": name})
                return found.first() is not None
            changed = connection.execute(governing.change_namespace(self._db.tables, which), {"name": name, **given})
            return bool(changed.rowcount)

    def register_strangers(self) -> list[str]:
        """Register namespaces that have rows and that nobody registered; returns their names.

        Their first user left that to a transaction that rolled back, or inserted the rows in plain SQL.
        """
        db, registered = self._db, set()
        with db.begin(reads=True) as connection:
            found = connection.execute(governing.stranger_names(db.tables)).scalars()
            names = {name for name in found if isinstance(name, str)}  # SQLite keeps bytes in any column
        if names:
            with db.begin() as connection:
                statement = governing.register_names(db.tables, db.dialect)
                given = values(db.dialect, "fresh", namespace=sorted(names))
                registered = set(connection.execute(statement, given).scalars())
        self.waiting = frozenset(names - registered)
        return sorted(registered)

    def seen(self, names: Sequence[str], every: timedelta) -> None:
        """Note that namespaces had rows to run just now, where the last note is older than ``every``."""
        parameters = {**values(self._db.dialect, "names", namespace=sorted(names)), "every": every.total_seconds()}
        with self._db.begin() as connection:
            connection.execute(governing.seen(self._db.tables, self._db.dialect), parameters)

    def met(self, names: set[str]) -> None:
        """Rows of these namespaces were claimed: :meth:`tend` notes it. May be called from another thread."""
        self._met |= names

    def tend(self) -> list[str]:
        """Do, where it is time, what :meth:`seen` and :meth:`register_strangers` say; returns what the latter does.

        Dead index entries may make the look after strangers long, so it takes a small part of the time only.
        """
        if self._met and self._clock() >= self._note_at:
            met, self._met = self._met, set()
            self._note_at = self._clock() + NOTE_EVERY.total_seconds()
            self.seen(sorted(met), NOTE_EVERY / 2)
        if (begun := self._clock()) < self._look_at:
            return []
        strangers = self.register_strangers()
        self._look_at = begun + max(self._look_every, (self._clock() - begun) / DUTY)
        return strangers

    # -- holds -------------------------------------------------------------------------------------------------------

    def pause(self, scope: Scope, value: str, reason: str | None = None) -> None:
        """Hold rows back from now on, and from the next claim on those that are pending. What is claimed goes on.

        A hold that is there stays as old as it is.
        """
        parameters = {"scope": scope.value, "value": value, "reason": reason}
        with self._db.begin() as connection:
            connection.execute(governing.put_hold(self._db.tables, self._db.dialect), parameters)

    def resume(self, scope: Scope, value: str) -> int | None:
        """End a hold and put its rows back among those that are due: so many; None where there is no such hold.

        The rows go back also where there is none: a resume that broke off half-way is done again by calling it again.
        """
        db = self._db
        with db.begin() as connection:
            parameters = {"scope": scope.value, "value": value}
            was_held = bool(connection.execute(governing.drop_hold(db.tables), parameters).rowcount)
        total, moved = 0, BATCH
        while moved >= BATCH:
            with db.begin() as connection:
                moved = unpark(connection, db, scope, value, BATCH)
            total += moved
        return total if was_held else None

    def holds(self) -> list[HoldInfo]:
        """All holds, the oldest first."""
        with self._db.begin(reads=True) as connection:
            return _holds(connection.execute(governing.holds(self._db.tables)))

    def kept(self, row: RowDetail, default_quota: int | None, *, namespace_queues: bool) -> Kept:
        """What may keep a pending row back."""
        tables = self._db.tables
        place = {"namespace": row.namespace, "at": row.visible_after, "id": row.id, "most": AHEAD_MOST}
        held = {"workflow": row.workflow_id, "namespace": row.namespace, "task": row.task}
        with self._db.begin(reads=True) as connection:
            found = connection.execute(governing.namespaces(tables, True), {"name": row.namespace}).mappings().first()
            ahead, others = connection.execute(governing.place_in_line(tables), place).one()
            return Kept(
                namespace=None if found is None else _namespace(found, default_quota),
                holds=_holds(connection.execute(governing.holds_on(tables), held)),
                ahead=ahead,
                others=others,
                namespace_queues=namespace_queues,
            )

    # -- workflows ---------------------------------------------------------------------------------------------------

    def workflow(self, workflow_id: str) -> WorkflowInfo | None:
        """What is to be seen of a workflow's rows as long as they are kept; None where there are none."""
        tables, name = self._db.tables, {"name": workflow_id}
        with self._db.begin(reads=True) as connection:
            found = dict(connection.execute(governing.workflow(tables), name).mappings().one())
            counts = {one.value: found.pop(one.value) for one in Status}
            if not any(counts.values()):
                return None
            return WorkflowInfo(
                **{**found, "held": bool(found["held"])},
                workflow_id=workflow_id,
                counts=counts,
                total=sum(counts.values()),
                run_ids=tuple(connection.execute(governing.workflow_runs(tables), name).scalars()),
                failed=tuple(connection.execute(governing.workflow_failed(tables), name).scalars()),
            )


def _namespace(row: Any, default_quota: int | None) -> NamespaceInfo:
    return NamespaceInfo(
        **{
            **row,
            "state": NamespaceState(row["state"]),
            "placement": PlacementKind(row["placement"]),
            "nodes": tuple(json.loads(row["nodes"])),
            "held": bool(row["held"]),
        },
        quota=effective_quota(row["max_in_flight"], default_quota),
    )


def _holds(rows: sa.CursorResult[Any]) -> list[HoldInfo]:
    return [HoldInfo(**{**one, "scope": Scope(one["scope"])}) for one in rows.mappings()]
