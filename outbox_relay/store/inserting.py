"""One page of rows inserted with one statement: the one that is quickest for what the page holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from outbox_relay.store.driver import psycopg_text
from outbox_relay.store.sql import POSTGRESQL, SQLITE, values
from outbox_relay.store.statements import staging as statements
from outbox_relay.store.wake import channel_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outbox_relay.core.row import NewRow
    from outbox_relay.store.raw import Connection
    from outbox_relay.store.schema import Tables


class Inserted(NamedTuple):
    """A row that is there now. ``namespace_state`` is known where namespaces were registered with it."""

    id: int
    namespace: str
    dispatch_key: str
    namespace_state: str | None = None


def insert_page(
    connection: Connection, tables: Tables, page: Sequence[NewRow], fresh: list[str], *, wake: bool
) -> list[Inserted]:
    """Insert rows whose keys are free, registering the namespaces ``fresh``, and return what was inserted."""
    dialect = connection.dialect.name
    if dialect == SQLITE:
        if fresh:
            connection.execute(statements.mint_namespaces(tables), [{"fresh": name} for name in fresh])
        plain = all(map(_is_plain, page))
        parameters = [_plain_parameters(row) if plain else _parameters(row) for row in page]
        statement = statements.insert_values(tables, dialect, plain=plain)
        found: Sequence[Any] = connection.execute(statement, parameters).all()
        return [Inserted(row[0], row[1], row[2]) for row in found]
    channel = channel_name(tables) if wake else None
    statement, values_given = _for_postgresql(tables, page, bool(fresh), channel)
    if fresh:
        values_given.update(values(dialect, "fresh", namespace=fresh))
    inserted = _run(connection, statement, values_given)
    return [Inserted(row[0], row[1], row[2], row[-1] if fresh else None) for row in inserted]


def _for_postgresql(
    tables: Tables, page: Sequence[NewRow], fresh: bool, channel: str | None
) -> tuple[sa.Insert, dict[str, Any]]:
    if len(page) == 1:
        (row,) = page
        plain = _is_plain(row)
        statement = statements.insert_values(tables, POSTGRESQL, fresh, channel, plain)
        return statement, _plain_parameters(row) if plain else _parameters(row)
    common = page[0].common
    if all(row.common == common and _is_due_at_once(row) for row in page):
        own = zip(*(row[1:8] for row in page), strict=True)
        arrays = values(POSTGRESQL, "rows", **dict(zip(statements.OWN, own, strict=True)))
        return statements.insert_alike(tables, fresh, channel), {**common._asdict(), **arrays}
    columns = zip(*(_parameters(row).values() for row in page), strict=True)
    names = (*statements.COLUMNS, *statements.DUE)
    arrays = values(POSTGRESQL, "rows", **dict(zip(names, columns, strict=True)))
    return statements.insert_arrays(tables, fresh, channel), arrays


def _is_due_at_once(row: NewRow) -> bool:
    return row.visible_after is None and row.delay is None and row.expires_at is None


def _is_plain(row: NewRow) -> bool:
    """Whether nothing is asked of a row but to be run: its optional columns keep what they have by default."""
    return _is_due_at_once(row) and row.ordinal is None and not any(row.common[8:])


def _plain_parameters(row: NewRow) -> dict[str, Any]:
    common = row.common
    return {
        "namespace": common.namespace,
        "dispatch_key": row.dispatch_key,
        "content_hash": row.content_hash,
        "task_queue": common.task_queue,
        "node": common.node,
        "exchange": common.exchange,
        "routing_key": common.routing_key,
        "task": common.task,
        "task_id": row.task_id,
        "body": row.body,
        "content_type": common.content_type,
        "content_encoding": common.content_encoding,
        "headers": row.headers,
        "properties": row.properties,
    }


def _parameters(row: NewRow) -> dict[str, Any]:
    """All parameters of a row, in the order of the columns."""
    common = row.common
    return {
        "namespace": common.namespace,
        "dispatch_key": row.dispatch_key,
        "content_hash": row.content_hash,
        "workflow_id": common.workflow_id,
        "run_id": common.run_id,
        "ordinal": row.ordinal,
        "task_queue": common.task_queue,
        "node": common.node,
        "exchange": common.exchange,
        "routing_key": common.routing_key,
        "task": common.task,
        "task_id": row.task_id,
        "body": row.body,
        "content_type": common.content_type,
        "content_encoding": common.content_encoding,
        "headers": row.headers,
        "properties": row.properties,
        "retries": common.retries,
        "max_attempts": common.max_attempts,
        "settle_on": common.settle_on,
        "expires_at": row.expires_at,
        "due_at": row.visible_after,
        "delay": 0.0 if row.delay is None else row.delay.total_seconds(),
    }


# -- psycopg, without a detour -------------------------------------------------------------------------------------


def _run(connection: Connection, statement: sa.Insert, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    if not _speaks_psycopg(connection):
        return connection.execute(statement, parameters).all()
    text = psycopg_text(statement, connection.dialect)
    if isinstance(connection, sa.Connection) and connection.dialect.driver == "psycopg" and not _is_watched(connection):
        return _run_on_cursor(connection, text, parameters)
    return connection.exec_driver_sql(text, parameters).all()


def _speaks_psycopg(connection: Connection) -> bool:
    """Whether a statement may be handed over as text: nothing in it is left for SQLAlchemy to translate."""
    plain = not connection.get_execution_options().get("schema_translate_map")
    return plain and connection.dialect.driver in {"psycopg", "psycopg_async"}


def _is_watched(connection: sa.Connection) -> bool:
    """Whether somebody listens to the statements of this connection, as tracers do, or wants them in the log."""
    if getattr(connection, "_echo", True):
        return True
    parts = (connection, connection.engine, connection.dialect)
    if not any(getattr(part, "_has_events", True) for part in parts):  # no listener of any kind, told quickly
        return False
    own, dialect = connection.dispatch, connection.dialect.dispatch
    listeners = (own.before_cursor_execute, own.after_cursor_execute, dialect.do_execute, dialect.handle_error)
    return any(map(bool, listeners))


def _run_on_cursor(connection: sa.Connection, text: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Execute on a cursor of the driver's: what SQLAlchemy does around it takes as long as the server's answer.

    Errors are raised as SQLAlchemy raises them, and a connection that is lost is marked as lost.
    """
    cursor = _cursor(connection, text)
    driver = connection.dialect.loaded_dbapi
    try:
        cursor.execute(text, parameters)
        found: Sequence[Sequence[Any]] = cursor.fetchall()
        if len(found) > 1:  # it would keep the result of a page for as long as the connection lives
            connection.info[CURSORS].pop(text).close()
        return found
    except driver.Error as error:
        raise _wrapped(connection, text, parameters, error) from error


CURSORS = "outbox_relay.cursors"  # in Connection.info, which lives as long as the driver's connection
KEPT_CURSORS = 8


def _cursor(connection: sa.Connection, text: str) -> Any:
    """The cursor that executed this text last: it knows its parameters and results already."""
    kept = connection.info.get(CURSORS)
    if kept is None or len(kept) >= KEPT_CURSORS:
        kept = connection.info[CURSORS] = {}
    cursor = kept.get(text)
    if cursor is None:
        cursor = kept[text] = connection.connection.cursor()
    return cursor


def _wrapped(connection: sa.Connection, text: str, parameters: Any, error: Exception) -> BaseException:
    dialect: Any = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.driver_connection, None)
    wrapped = sa.exc.DBAPIError.instance(
        text,
        parameters,
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=connection.engine.hide_parameters,
        connection_invalidated=lost,
        dialect=dialect,
    )
    if lost:
        connection.invalidate(error)
    return wrapped
