"""What an operator asks of the rows and does to them; also the pruning of what has ended."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from outbox_relay.core.lifecycle import Status
from outbox_relay.core.row import Cancelled, RowDetail, RowFilter
from outbox_relay.errors import StoreAway, StoreError
from outbox_relay.store.sql import POSTGRESQL, values
from outbox_relay.store.statements import operating

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    import sqlalchemy as sa

    from outbox_relay.store.engine import Database

MAX_ID = 2**63 - 1
BATCH = 5_000
CANCELLED = "cancelled by an operator"
FIND_MS = 5_000
QUERY_CANCELED = "57014"


class Operator:
    """The store's side of the command line."""

    def __init__(self, database: Database) -> None:
        self._db = database

    # -- ask ---------------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        with self._db.begin(reads=True) as connection:
            found = dict(connection.execute(operating.counts(self._db.tables)).mappings().one())
        oldest, now = found.pop("oldest"), found.pop("now")
        pending = found["due"] + found["delayed"] + found["parked"]
        waiting = 0 if oldest is None else max(int((now - oldest).total_seconds()), 0)
        return {"pending": pending, **found, "oldest_due_seconds": waiting}

    def aside(self) -> int:
        with self._db.begin(reads=True) as connection:
            return int(connection.execute(operating.count_aside(self._db.tables)).scalar_one())

    def ls(self, wanted: RowFilter, *, status: str | None, limit: int) -> list[RowDetail]:
        statement = operating.list_rows(self._db.tables, status, _which(wanted))
        with self._db.begin(reads=True) as connection:
            return _details(connection, statement, {**_given(wanted), "limit": limit})

    def find(self, key: str) -> list[RowDetail]:
        tables, by_key = self._db.tables, {"key": key}
        with self._db.begin(reads=True) as connection:
            if key.isdecimal() and int(key) <= MAX_ID:
                found = _details(connection, operating.rows_by_id(tables), {"id": int(key)})
                if found:
                    return found
            for statement in (operating.rows_by_key(tables), operating.rows_in_flight_by_task_id(tables)):
                if found := _details(connection, statement, by_key):
                    return found
        return self._find_ended(by_key)

    def _find_ended(self, by_key: dict[str, str]) -> list[RowDetail]:
        """Read the table for a row by its task id: the last thing to try, and not for long.

        Raises:
            StoreError: it is too large for that.
        """
        try:
            with self._db.begin(reads=True) as connection:
                if self._db.dialect == POSTGRESQL:
                    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {FIND_MS}")
                return _details(connection, operating.rows_by_task_id(self._db.tables), by_key)
        except StoreAway as error:
            if getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) != QUERY_CANCELED:
                raise
            raise StoreError(
                f"no row in flight has the task id {by_key['key']}, and to look through those that have ended takes "
                f"more than {FIND_MS // 1000} s: name the row by its id or its dispatch key"
            ) from error

    # -- do ----------------------------------------------------------------------------------------------------------

    def cancel(self, wanted: RowFilter, reason: str = CANCELLED, limit: int = BATCH) -> list[Cancelled]:
        db = self._db
        statement = operating.lock_for_cancel(db.tables, db.dialect, _which(wanted))
        with db.begin() as connection:
            rows = connection.execute(statement, {**self._chosen(wanted), "limit": limit}).all()
            parameters = {**values(db.dialect, "ids", id=[row.id for row in rows]), "reason": reason}
            if rows:
                connection.execute(operating.cancel(db.tables, db.dialect), parameters)
        return [
            Cancelled(
                id=row.id,
                task_id=row.task_id,
                published=row.status == Status.CLAIMED.value or row.claim_token is not None,
                worker=row.worker,
                queue=row.published_to,
            )
            for row in rows
        ]

    def redrive(self, wanted: RowFilter, limit: int = BATCH) -> int:
        statement = operating.redrive(self._db.tables, self._db.dialect, _which(wanted))
        with self._db.begin() as connection:
            return int(connection.execute(statement, {**self._chosen(wanted), "limit": limit}).rowcount)

    def discard(self, wanted: RowFilter, limit: int = BATCH) -> int:
        statement = operating.discard(self._db.tables, self._db.dialect, _which(wanted))
        with self._db.begin() as connection:
            gone = connection.execute(statement, {**self._chosen(wanted), "limit": limit}).scalars().all()
            self._forget_once(connection, gone)
        return len(gone)

    def prune(self, *, done: timedelta, failed: timedelta, limit: int = BATCH) -> int:
        ages = {Status.DONE: done, Status.CANCELLED: done, Status.FAILED: failed}
        pruned = 0
        for status, age in ages.items():
            if pruned >= limit:
                break
            statement = operating.prune(self._db.tables, self._db.dialect, status.value)
            with self._db.begin() as connection:
                parameters = {"age": age.total_seconds(), "limit": limit - pruned}
                gone = connection.execute(statement, parameters).scalars().all()
                self._forget_once(connection, gone)
            pruned += len(gone)
        return pruned

    def _forget_once(self, connection: sa.Connection, ids: Sequence[int]) -> None:
        if ids:
            statement = operating.forget_once(self._db.tables, self._db.dialect)
            connection.execute(statement, values(self._db.dialect, "ids", id=ids))

    def _chosen(self, wanted: RowFilter) -> dict[str, Any]:
        parameters = _given(wanted)
        if wanted.ids is not None:
            parameters |= values(self._db.dialect, "ids", id=[one for one in wanted.ids if one <= MAX_ID])
        return parameters


def _given(wanted: RowFilter) -> dict[str, Any]:
    """The parameters of a filter's conditions, but for the ids."""
    given = {f"wanted_{name}": getattr(wanted, name) for name in _which(wanted) - {"ids"}}
    if wanted.error is not None:  # a part of a text, not a pattern
        given["wanted_error"] = re.sub("([/%_])", r"/\1", wanted.error)
    return given


def _which(wanted: RowFilter) -> frozenset[str]:
    """The fields that a filter gives."""
    return frozenset(one.name for one in fields(wanted) if getattr(wanted, one.name) is not None)


def _details(connection: sa.Connection, statement: sa.Select[Any], parameters: dict[str, Any]) -> list[RowDetail]:
    rows = connection.execute(statement, parameters).mappings()
    return [
        RowDetail(**{**row, "status": Status(row["status"]), "due": bool(row["due"]), "parked": bool(row["parked"])})
        for row in rows
    ]
