"""A sweep's claim where it has to be shared: between namespaces, within quotas, around holds, towards nodes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outbox_relay.core.directives import Directives, Spread
from outbox_relay.core.permits import Census, headroom, wanted
from outbox_relay.core.placement import Route
from outbox_relay.core.planning import share
from outbox_relay.store import claimed
from outbox_relay.store.directives import guards
from outbox_relay.store.sql import POSTGRESQL, values
from outbox_relay.store.statements import claiming
from outbox_relay.store.statements.claiming import Narrow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from outbox_relay.core.planning import Watermark
    from outbox_relay.core.row import Batch
    from outbox_relay.store.directives import Terms
    from outbox_relay.store.engine import Database


class FairClaims:
    """Looks which namespaces have due rows, shares the places between them, and claims the shares."""

    def __init__(self, database: Database, watermark: Watermark, terms: Terms) -> None:
        self._db = database
        self._watermark = watermark
        self._terms = terms
        self._census = Census()
        self._spread = Spread()
        self._turn = ""  # the last namespace that had its turn
        self.several = False  # more than one namespace is registered, as far as is known
        self.strangers: frozenset[str] = frozenset()  # namespaces with rows that somebody is about to register
        self.at_quota: frozenset[str] = frozenset()  # the namespaces that had no room left after the last claim

    def claim(
        self, connection: sa.Connection, limit: int, taking: dict[str, Any], said: Directives | None
    ) -> Batch | None:
        """Claim at most ``limit`` rows.

        ``said`` None: nothing is said about any namespace, as far as is known. Where something is, nothing is claimed
        and None comes back.
        """
        full = self._full(connection, said)
        guard = self._guard(said, full)
        looks = self._look(connection, limit, said, guard)
        now, self.several = looks[0].now, looks[0].namespaces > 1
        if said is None and looks[0].governed:
            return None
        due = {one.namespace: one.rows for one in looks if one.namespace is not None}
        room = self._room(connection, due, said)
        shares = share(wanted(due, room), limit)
        rows = self._take(connection, shares, taking, said, guard) if shares else []
        if shares:
            self._turn = list(shares)[-1]
        elif due:
            self._turn = list(due)[-1]
        self.at_quota = full | {name for name, left in room.items() if left <= shares.get(name, 0)}
        batch = claimed.batch(rows, more=self._more(limit, due, room, rows))
        self._watermark.looked(now, self._left(limit, due, full, rows), everywhere=len(due) < limit)
        if said is not None:
            self._place(batch, said)
        return batch

    # -- the steps ---------------------------------------------------------------------------------------------------

    def _narrow(self, said: Directives | None) -> Narrow:
        return Narrow(guarded=said is not None, sharded=self._terms.shards is not None)

    def _guard(self, said: Directives | None, full: frozenset[str]) -> dict[str, Any]:
        parameters: dict[str, Any] = shard_parameters(self._terms)
        if said is not None:
            parameters |= guards(said, self._db.dialect)
            parameters |= values(self._db.dialect, "closed", value=sorted(said.closed | full))
        return parameters

    def _look(
        self, connection: sa.Connection, limit: int, said: Directives | None, guard: dict[str, Any]
    ) -> Sequence[Any]:
        marks = self._watermark.marks
        given = values(self._db.dialect, "marks", namespace=list(marks), since=list(marks.values()))
        strangers = sorted(self.strangers)
        statement = claiming.due_namespaces(self._db.tables, self._db.dialect, self._narrow(said), bool(strangers))
        parameters = {"limit": limit, "turn": self._turn, "since": self._watermark.floor, **given, **guard}
        if strangers:
            parameters |= values(self._db.dialect, "strangers", value=strangers)
        return connection.execute(statement, parameters).all()

    def _full(self, connection: sa.Connection, said: Directives | None) -> frozenset[str]:
        """The namespaces that seem to have no room: they are left out of the look, so as to take no place in it."""
        if said is None or not said.limits:
            return frozenset()
        counts, now, oldest = self._count(connection)
        self._census.counted(now, oldest, alone=False)
        return frozenset(name for name, rows in counts.items() if self._headroom(said, name, rows) == 0)

    def _room(self, connection: sa.Connection, due: Mapping[str, int], said: Directives | None) -> dict[str, int]:
        """How many rows of each namespace with a quota may be claimed, counted while nobody else counts or claims."""
        if said is None or all(said.quota(name) is None for name in due):
            return {}
        if self._db.dialect == POSTGRESQL:  # a transaction that writes is alone on SQLite
            connection.execute(claiming.lock_quotas(self._db.tables))
        counts, now, oldest = self._count(connection)
        self._census.counted(now, oldest, alone=True)
        found = {name: self._headroom(said, name, counts.get(name, 0)) for name in due}
        return {name: rows for name, rows in found.items() if rows is not None}

    def _headroom(self, said: Directives, namespace: str, rows: int) -> int | None:
        quota = said.quota(namespace)
        return None if quota is None else headroom(quota, rows, self._terms.owns)

    def _count(self, connection: sa.Connection) -> tuple[dict[str, int], datetime, datetime | None]:
        narrow = Narrow(sharded=self._terms.shards is not None)
        parameters = {"since": self._census.begin(time.monotonic()), **shard_parameters(self._terms)}
        found = connection.execute(claiming.claimed_rows(self._db.tables, narrow), parameters).all()
        of_each = [one for one in found if one.namespace is not None]
        oldest = min((one.oldest for one in of_each), default=None)
        return {one.namespace: one.rows for one in of_each}, found[0].now, oldest

    def _take(
        self,
        connection: sa.Connection,
        shares: Mapping[str, int],
        taking: dict[str, Any],
        said: Directives | None,
        guard: dict[str, Any],
    ) -> Sequence[Any]:
        dialect = self._db.dialect
        since = [self._watermark.since(name) for name in shares]
        plan = values(dialect, "plan", namespace=list(shares), share=list(shares.values()), since=since)
        most = {} if dialect == POSTGRESQL else {"most": max(shares.values())}
        statement = claiming.claim_shares(self._db.tables, dialect, self._narrow(said))
        needed = {name: value for name, value in guard.items() if not name.startswith("closed")}
        return connection.execute(statement, {**taking, **needed, **plan, **most}).all()

    def _more(self, limit: int, due: Mapping[str, int], room: Mapping[str, int], rows: Sequence[Any]) -> bool:
        """Whether other rows may be claimed right away."""
        if len(due) >= limit:
            return True
        taken = Counter(one.namespace for one in rows)
        return any(
            taken[name] < room.get(name, taken[name] + 1) and (taken[name] < count or count >= _counted(limit, due))
            for name, count in due.items()
        )

    @staticmethod
    def _left(
        limit: int, due: Mapping[str, int], full: frozenset[str], rows: Sequence[Any]
    ) -> dict[str, datetime | None]:
        """The namespaces that have more due rows, each with the instant up to which they were taken."""
        taken: dict[str, list[datetime]] = {}
        for one in rows:
            taken.setdefault(one.namespace, []).append(one.visible_after)
        left: dict[str, datetime | None] = dict.fromkeys(full)
        for name, count in due.items():
            instants = taken.get(name, [])
            if len(instants) < count or count >= _counted(limit, due):
                left[name] = max(instants, default=None)
        return left

    def _place(self, batch: Batch, said: Directives) -> None:
        """Name the node of each row that goes to one: in the claim, not in the database."""
        if not said.placements:
            return
        for at, row in enumerate(batch):
            if row.namespace in said.placements:
                route = Route(row.namespace, row.message.task_queue, row.node)
                node = self._spread.choose(route, said.nodes_for(route))
                if node != row.node:
                    batch[at] = replace(row, node=node)


def _counted(limit: int, due: Mapping[str, int]) -> int:
    """How far the rows of each namespace were counted: there may be more where there are so many."""
    return -(-limit // max(len(due), 1)) * claiming.COUNTED_PARTS


def shard_parameters(terms: Terms) -> dict[str, int]:
    """The parameters of :func:`outbox_relay.store.statements.directives.owned`."""
    shards = terms.shards
    if shards is None:
        return {}
    return {"shards": shards.total, "first_shard": shards.first, "last_shard": shards.last}
