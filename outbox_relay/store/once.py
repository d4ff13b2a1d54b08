"""The marker that makes a task's own database effects happen once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.store.statements import operating

if TYPE_CHECKING:
    from outbox_relay.store.raw import Connection
    from outbox_relay.store.schema import Tables


def mark_once(connection: Connection, tables: Tables, *, row_id: int, task_id: str) -> bool:
    """Note, in the task's own transaction, that the effects of a row are being committed.

    Returns whether this run is the first to do so; false means that another run's effects are there already. A run that
    is still open is waited for: it may yet roll back.
    """
    statement = operating.mark_once(tables, connection.dialect.name)
    return connection.execute(statement, {"row_id": row_id, "task_id": task_id}).first() is not None


SERIALIZATION_FAILURE = "40001"


def is_serialization_failure(error: BaseException | None) -> bool:
    """Whether PostgreSQL has ended a transaction because another one was quicker; whoever wraps the driver's error."""
    while error is not None:
        original = getattr(error, "orig", None) or error
        if getattr(original, "sqlstate", None) == SERIALIZATION_FAILURE:
            return True
        error = error.__cause__
    return False
