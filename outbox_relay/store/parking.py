"""Rows that a hold or their placement keeps back: they leave the due indexes, and come back into them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from outbox_relay.store.directives import guards
from outbox_relay.store.sql import POSTGRESQL, values
from outbox_relay.store.statements import parking

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import sqlalchemy as sa

    from outbox_relay.core.directives import Directives
    from outbox_relay.core.namespaces import Scope
    from outbox_relay.store.engine import Database

BATCH = 5_000


def unpark(connection: sa.Connection, database: Database, scope: Scope, value: str, limit: int = BATCH) -> int:
    """Put at most ``limit`` rows back that a hold on ``value`` may have kept; returns how many they were.

    The hold is to be deleted before, in this transaction or in one that has committed: who parks rows reads the holds
    FOR SHARE, so that the deletion waits for it and nothing is left behind. Call again, each time in a transaction
    of its own, until less than ``limit`` come back. Other reasons to keep a row back are looked at again by the next
    claim.
    """
    parameters = {"value": value, "limit": limit}
    return int(connection.execute(parking.unpark(database.tables, database.dialect, scope), parameters).rowcount)


LEAST = 0.25
DUTY = 0.05
DEPTH = 2_000
"""Rows that one look for rows to park reads of one namespace."""


class Parking:
    """Keeps the due indexes free of rows that are kept back, and brings back those that are not any more.

    No claim depends on it: it never takes a row that is kept back, parked or not. Parking is what keeps claims from
    reading past such rows again and again.
    """

    def __init__(self, database: Database, interval: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = database
        self._interval = interval.total_seconds()
        self._clock = clock
        self._said: Directives | None = None
        self._turn = ""
        self._park_at = clock()
        self._reconcile_at = clock()
        self._after: int | None = None  # a pass over the parked rows has come so far

    def tidy(self, said: Directives, budget: float) -> tuple[int, bool]:
        """Park and unpark for about ``budget`` seconds; return how many rows came back, and whether more is to be done.

        All parked rows are looked at whenever anything that is said has changed, and every ``interval``.
        """
        begun = self._clock()
        if said != self._said:
            self._said, self._park_at, self._reconcile_at = said, begun, begun
            self._after = None
        back, more = 0, True
        while more and self._clock() - begun <= budget:
            back += (found := self._reconcile(said))[0]
            more = found[1]
        if more:
            return back, True
        more = said.keeps_back
        while more and self._clock() - begun <= budget:
            more = self._park(said)
        return back, more

    def _parameters(self, said: Directives) -> dict[str, Any]:
        found = values(self._db.dialect, "unreadable", value=sorted(said.unreadable))
        placement = guards(said, self._db.dialect)
        return found | {name: value for name, value in placement.items() if name.startswith(("pinned", "openings"))}

    def _reconcile(self, said: Directives) -> tuple[int, bool]:
        """Look at the next page of parked rows, if it is time; return how many came back, and whether more follow."""
        if self._after is None:
            if self._clock() < self._reconcile_at:
                return 0, False
            self._reconcile_at = self._clock() + self._interval
            self._after = 0
        db, page = self._db, {"after": self._after, "limit": BATCH}
        with db.begin() as connection:
            rows, last = connection.execute(parking.parked_page(db.tables), page).one()
            back = 0
            if rows:
                bounds = {"after": self._after, "last": last, **self._parameters(said)}
                back = int(connection.execute(parking.reconcile(db.tables, db.dialect), bounds).rowcount)
        self._after = last if rows == BATCH else None
        return back, self._after is not None

    def _park(self, said: Directives) -> bool:
        """Park a batch, if it is time; tell whether there may be more of them."""
        begun = self._clock()
        if begun < self._park_at:
            return False
        db, parameters = self._db, self._parameters(said)
        with db.begin() as connection:
            if db.dialect == POSTGRESQL:
                parameters |= {"turn": self._turn, "depth": DEPTH, "limit": BATCH}
                found = connection.execute(parking.park(db.tables, db.dialect), parameters).one()
                parked, self._turn = found.moved, found.turn if found.seen >= BATCH else ""
            else:
                parameters["limit"] = BATCH
                parked = connection.execute(parking.park_all(db.tables, db.dialect), parameters).rowcount
        if not parked:
            self._park_at = begun + max(LEAST, (self._clock() - begun) / DUTY)
        return bool(parked)
