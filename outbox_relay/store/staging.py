"""Rows inserted in the caller's own transaction, the quickest way for their number."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.core.namespaces import NamespaceState, unknown_namespace
from outbox_relay.core.placement import DEFAULT_NAMESPACE
from outbox_relay.core.row import Staged
from outbox_relay.errors import DispatchKeyConflict, StagingError, StoreError
from outbox_relay.store.engine import MIGRATE_HINT, is_missing_table
from outbox_relay.store.sql import POSTGRESQL, SQLITE, values
from outbox_relay.store.statements import staging as statements
from outbox_relay.store.wake import channel_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outbox_relay.core.row import NewRow
    from outbox_relay.store.raw import Connection
    from outbox_relay.store.schema import Tables

PAGE = 1_000
"""Rows a statement."""


def insert_rows(
    connection: Connection, tables: Tables, rows: Sequence[NewRow], *, wake: bool, open_namespaces: bool
) -> list[Staged]:
    """Insert ``rows`` in the transaction of ``connection`` and return what came of each, in the same order.

    A row whose dispatch key is taken, within its namespace, by a row with the same content is not inserted again: the
    first row's id and task id come back, with ``created`` false. ``wake`` notifies the relays at commit (PostgreSQL).
    ``open_namespaces`` registers a namespace at its first use; otherwise an unknown one is refused.

    Raises:
        DispatchKeyConflict: the key is taken by other content; of this call's rows none stays.
        StagingError: a namespace is deprecated; or it is unknown, and namespaces are closed. No row of this call stays.
        StoreError: the outbox's tables are not there, or the database is one that the outbox does not know.
    """
    dialect = connection.dialect.name
    if dialect not in (POSTGRESQL, SQLITE):
        raise StoreError(f"the outbox does not stage on {dialect!r}: its databases are PostgreSQL and SQLite")
    unique = _first_of_each_key(rows)
    try:
        fresh = _namespaces(connection, tables, unique, open_namespaces=open_namespaces)
        known = _insert(connection, tables, unique, fresh, wake=wake)
    except (sa.exc.ProgrammingError, sa.exc.OperationalError) as error:
        if is_missing_table(error):
            raise StoreError(MIGRATE_HINT) from error
        raise
    staged = []
    for row in rows:
        found = known[row.namespace, row.dispatch_key]
        created = found.created and unique[row.namespace, row.dispatch_key] is row
        staged.append(
            Staged(row_id=found.row_id, task_id=found.task_id, dispatch_key=row.dispatch_key, created=created)
        )
    return staged


_Key = tuple[str, str]


def _first_of_each_key(rows: Iterable[NewRow]) -> dict[_Key, NewRow]:
    """The rows by key, in the order of their keys, in which every transaction inserts: two of them never deadlock."""
    unique: dict[_Key, NewRow] = {}
    for row in rows:
        first = unique.setdefault((row.namespace, row.dispatch_key), row)
        if first is not row and first.content_hash != row.content_hash:
            raise _conflict(row)
    return dict(sorted(unique.items())) if len(unique) > 1 else unique


def _namespaces(connection: Connection, tables: Tables, rows: Iterable[_Key], *, open_namespaces: bool) -> list[str]:
    """The namespaces that may have to be registered; the migration has registered ``default``.

    Where they are open, PostgreSQL registers them and looks at their state in the statement that inserts the rows.
    """
    names = sorted({namespace for namespace, _ in rows} - {DEFAULT_NAMESPACE})
    dialect = connection.dialect.name
    if not names or (open_namespaces and dialect == POSTGRESQL):
        return names
    statement = statements.registered_namespaces(tables, dialect)
    found = connection.execute(statement, values(dialect, "names", namespace=names))
    states = {one.namespace: one.state for one in found}
    if deprecated := [name for name in names if states.get(name) == DEPRECATED]:
        raise _deprecated(deprecated[0])
    if open_namespaces:
        return [name for name in names if name not in states]
    if unknown := [name for name in names if name not in states]:
        known = connection.execute(sa.select(tables.namespace.c.namespace)).scalars().all()
        raise StagingError(unknown_namespace(unknown[0], known))
    return []


DEPRECATED = NamespaceState.DEPRECATED.value


def _deprecated(name: str) -> StagingError:
    return StagingError(
        f"namespace {name!r} is deprecated: it takes no new rows; use another one, "
        f"or let it take rows again with 'outbox namespace set {name}'"
    )


def _insert(
    connection: Connection, tables: Tables, rows: dict[_Key, NewRow], fresh: list[str], *, wake: bool
) -> dict[_Key, Staged]:
    known: dict[_Key, Staged] = {}
    missing = list(rows)
    for _ in range(_TRIES):
        for start in range(0, len(missing), PAGE):
            page = [rows[key] for key in missing[start : start + PAGE]]
            inserted = _insert_page(connection, tables, page, fresh, wake=wake)
            for found in inserted:
                key = (found.namespace, found.dispatch_key)
                known[key] = Staged(
                    row_id=found.id, task_id=rows[key].message.task_id, dispatch_key=found.dispatch_key, created=True
                )
            if fresh and connection.dialect.name == POSTGRESQL:
                _refuse_deprecated(connection, tables, known, inserted)
        missing = [key for key in missing if key not in known]
        if not missing:
            return known
        for found in _look_up(connection, tables, missing):
            key = (found.namespace, found.dispatch_key)
            if found.content_hash != rows[key].content_hash:
                _take_back(connection, tables, known)
                raise _conflict(rows[key])
            known[key] = Staged(row_id=found.id, task_id=found.task_id, dispatch_key=found.dispatch_key, created=False)
        missing = [key for key in missing if key not in known]
        if not missing:
            return known
    raise StagingError(
        f"dispatch key {missing[0][1]!r} belongs to a row that this transaction cannot see: "
        "roll back and try again (isolation levels above READ COMMITTED do this)"
    )


def _refuse_deprecated(
    connection: Connection, tables: Tables, known: dict[_Key, Staged], inserted: Sequence[Any]
) -> None:
    for found in inserted:
        if found.namespace_state == DEPRECATED:
            _take_back(connection, tables, known)
            raise _deprecated(found.namespace)


_TRIES = 3  # a row may be pruned between the insert that met it and the look at it


def _insert_page(
    connection: Connection, tables: Tables, page: list[NewRow], fresh: list[str], *, wake: bool
) -> Sequence[Any]:
    dialect = connection.dialect.name
    parameters: Any
    if dialect == SQLITE:
        if fresh:
            connection.execute(statements.mint_namespaces(tables), [{"fresh": name} for name in fresh])
        parameters = [_parameters(row) for row in page]
        return connection.execute(statements.insert_values(tables, dialect), parameters).all()
    channel = channel_name(tables) if wake else None
    if len(page) == 1:
        statement = statements.insert_values(tables, dialect, bool(fresh), channel)
        parameters = _parameters(page[0])
    else:
        statement = statements.insert_arrays(tables, bool(fresh), channel)
        columns = list(zip(*(_parameters(row).values() for row in page), strict=True))
        parameters = values(dialect, "rows", **dict(zip((*statements.COLUMNS, *statements.DUE), columns, strict=True)))
    if fresh:
        parameters.update(values(dialect, "fresh", namespace=fresh))
    if _speaks_psycopg(connection):
        return connection.exec_driver_sql(_psycopg_text(statement, connection.dialect), parameters).all()
    return connection.execute(statement, parameters).all()


def _speaks_psycopg(connection: Connection) -> bool:
    """Whether a statement may be handed over as text: nothing in it is left for SQLAlchemy to translate."""
    plain = not connection.get_execution_options().get("schema_translate_map")
    return plain and connection.dialect.driver == "psycopg"


@lru_cache(maxsize=64)
def _psycopg_text(statement: sa.Insert, dialect: sa.Dialect) -> str:
    """An insert as text, with parameters in PostgreSQL's binary form.

    To find the text in SQLAlchemy's own cache takes longer than a local server's answer, and arrays of bytes in text
    form take twice the time of binary ones.
    """
    return re.sub(r"%\((\w+)\)s", r"%(\1)b", str(statement.compile(dialect=dialect)))


def _parameters(row: NewRow) -> dict[str, Any]:
    message = row.message
    return {
        "namespace": row.namespace,
        "dispatch_key": row.dispatch_key,
        "content_hash": row.content_hash,
        "workflow_id": row.workflow_id,
        "run_id": row.run_id,
        "ordinal": row.ordinal,
        "task_queue": message.task_queue,
        "node": row.node,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "task": message.task,
        "task_id": message.task_id,
        "body": message.body,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": message.headers,
        "properties": message.properties,
        "retries": row.retries,
        "max_attempts": row.max_attempts,
        "settle_on": row.settle_on,
        "expires_at": row.expires_at,
        "due_at": row.visible_after,
        "delay": 0.0 if row.delay is None else row.delay.total_seconds(),
    }


def _look_up(connection: Connection, tables: Tables, keys: Sequence[_Key]) -> Iterable[Any]:
    dialect = connection.dialect.name
    for start in range(0, len(keys), PAGE):
        namespaces, dispatch_keys = zip(*keys[start : start + PAGE], strict=True)
        parameters = values(dialect, "keys", namespace=namespaces, dispatch_key=dispatch_keys)
        yield from connection.execute(statements.rows_of_keys(tables, dialect), parameters)


def _take_back(connection: Connection, tables: Tables, known: dict[_Key, Staged]) -> None:
    """Delete what this call inserted: the caller may catch the error and commit."""
    dialect = connection.dialect.name
    created = [one.row_id for one in known.values() if one.created]
    for start in range(0, len(created), PAGE):
        connection.execute(
            statements.take_back(tables, dialect), values(dialect, "ids", id=created[start : start + PAGE])
        )


def _conflict(row: NewRow) -> DispatchKeyConflict:
    return DispatchKeyConflict(
        f"dispatch key {row.dispatch_key!r} of namespace {row.namespace!r} is taken by a row with another task, "
        "other arguments or another route: stage the same content again, or use another key"
    )
