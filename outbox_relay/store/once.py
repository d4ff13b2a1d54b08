"""The markers that make a task's own database effects happen once; they live where the effects are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.errors import StoreError
from outbox_relay.store.driver import SERIALIZATION_FAILURE
from outbox_relay.store.engine import is_missing_table
from outbox_relay.store.sql import values
from outbox_relay.store.statements import operating

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from outbox_relay.store.engine import Database
    from outbox_relay.store.raw import Connection
    from outbox_relay.store.schema import Tables


def mark_once(connection: Connection, tables: Tables, *, row_id: int, task_id: str) -> bool:
    """Note, in the task's own transaction, that the effects of a row are being committed.

    Returns whether this run is the first to do so; false means that another run's effects are there already. A run that
    is still open is waited for: it may yet roll back.

    Raises:
        StoreError: the table is not in this database.
    """
    statement = operating.mark_once(tables, connection.dialect.name)
    try:
        return connection.execute(statement, {"row_id": row_id, "task_id": task_id}).first() is not None
    except Exception as error:
        if isinstance(error, StoreError) or is_missing_table(error):
            raise StoreError(MISSING) from error
        raise


MISSING = (
    "the table for outbox.once() is not in the database of these effects: run 'outbox migrate --once-only URL' with "
    "its URL, or 'outbox migrate' where it is the outbox's own"
)


def is_serialization_failure(error: BaseException | None) -> bool:
    """Whether PostgreSQL has ended a transaction because another one was quicker; whoever wraps the driver's error."""
    while error is not None:
        original = getattr(error, "orig", None) or error
        if getattr(original, "sqlstate", None) == SERIALIZATION_FAILURE:
            return True
        error = error.__cause__
    return False


def prune_markers(place: Database, outbox: Database, *, age: timedelta, limit: int = 5_000) -> Iterator[int]:
    """Delete the markers in a database that is not the outbox's: those older than ``age`` whose rows are gone.

    Yields how many were deleted, a page of ``limit`` markers at a time. While a row is there, it may be redriven, and
    its marker stays.
    """
    row_id, task_id = -1, ""
    while True:
        with place.begin(reads=True) as connection:
            parameters = {"age": age.total_seconds(), "row_id": row_id, "task_id": task_id, "limit": limit}
            markers = connection.execute(operating.old_markers(place.tables), parameters).all()
        if not markers:
            return
        ids = values(outbox.dialect, "ids", id=[marker.row_id for marker in markers])
        with outbox.begin(reads=True) as connection:
            there = set(connection.execute(operating.rows_there(outbox.tables, outbox.dialect), ids).scalars())
        gone = [(marker.row_id, marker.task_id) for marker in markers if marker.row_id not in there]
        if gone:
            row_ids, task_ids = zip(*gone, strict=True)
            keys = values(place.dialect, "keys", row_id=row_ids, task_id=task_ids)
            with place.begin() as connection:
                connection.execute(operating.forget_markers(place.tables, place.dialect), keys)
        yield len(gone)
        row_id, task_id = markers[-1]
