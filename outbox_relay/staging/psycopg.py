"""psycopg 3's own connections, without an engine: the rows go through a cursor of psycopg's.

psycopg knows whether there is a transaction, and is asked; a connection out of autocommit begins one with its next
statement.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sqlalchemy.util import await_only

from outbox_relay.errors import StagingError
from outbox_relay.staging.place import OUTSIDE, Place
from outbox_relay.store.raw import RawConnection
from outbox_relay.store.sql import POSTGRESQL

if TYPE_CHECKING:
    from outbox_relay.store.raw import Found

HINT = "stage inside `with connection.transaction()`, or leave autocommit off"


def is_psycopg(given: Any) -> bool:
    """Whether this is a psycopg connection, sync or async; does not import psycopg to find out."""
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(given, (psycopg.Connection, psycopg.AsyncConnection))


def is_async_psycopg(given: Any) -> bool:
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(given, psycopg.AsyncConnection)


def enter_psycopg(connection: Any) -> Place:
    """Return the place to stage on; an async connection only from within a greenlet of SQLAlchemy's.

    Raises:
        StagingError: a rollback would not undo what is staged here.
    """
    if connection.closed or connection.broken:
        raise StagingError("nothing can be staged on a closed or lost connection")
    status = connection.info.transaction_status.name
    if status == "INERROR":
        raise StagingError("this transaction has failed, and takes no more statements: roll it back first")
    if status == "UNKNOWN":
        raise StagingError("nothing can be staged on a closed or lost connection")
    two_phase, prepared = getattr(connection, "_tpc", None) or (None, False)  # there is no public way to ask
    if prepared:
        raise StagingError("this transaction has been prepared, and takes no more statements")
    # In autocommit only an open transaction counts; in a pipeline (ACTIVE) psycopg cannot tell whether there is one.
    if connection.autocommit and status != "INTRANS":
        why = (
            "in a pipeline it cannot be told whether a transaction is open"
            if status == "ACTIVE"
            else "autocommit is on"
        )
        raise StagingError(f"{OUTSIDE}{why}, so a rollback might leave the task; {HINT}")
    return Place(raw_psycopg(connection), two_phase is not None)


def raw_psycopg(connection: Any, *, speaks_binary: bool = True) -> RawConnection:
    """Return a connection to execute statements on, whatever becomes of them.

    ``speaks_binary`` false keeps statements away that are handed to psycopg as they are.
    """
    run = _Async(connection) if is_async_psycopg(connection) else _Sync(connection)
    return RawConnection(POSTGRESQL, run, speaks_binary=speaks_binary)


class _Sync:
    """Executes on a cursor of psycopg's own class, whatever factories the connection was given."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self, text: str, parameters: Any, returns: bool) -> Found:
        from psycopg import Cursor  # noqa: PLC0415 - for PostgreSQL only
        from psycopg.rows import tuple_row  # noqa: PLC0415

        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(text, parameters)
            return _found(cursor, cursor.fetchall() if returns else [])


class _Async(_Sync):
    def __call__(self, text: str, parameters: Any, returns: bool) -> Found:
        return await_only(self._execute(text, parameters, returns))

    async def _execute(self, text: str, parameters: Any, returns: bool) -> Found:
        from psycopg import AsyncCursor  # noqa: PLC0415 - for PostgreSQL only
        from psycopg.rows import tuple_row  # noqa: PLC0415

        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(text, parameters)
            return _found(cursor, await cursor.fetchall() if returns else [])


def _found(cursor: Any, rows: list[Any]) -> Found:
    """In a pipeline, the cursor has a description only after its rows have been fetched."""
    return [column.name for column in cursor.description or ()], rows
