"""Rows inserted in the caller's own transaction, the quickest way for their number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.core.namespaces import NamespaceState, unknown_namespace
from outbox_relay.core.placement import DEFAULT_NAMESPACE
from outbox_relay.core.row import Staged
from outbox_relay.errors import DispatchKeyConflict, StagingError, StoreError
from outbox_relay.store.driver import SERIALIZATION_FAILURE
from outbox_relay.store.engine import MIGRATE_HINT, is_missing_table
from outbox_relay.store.inserting import insert_page
from outbox_relay.store.sql import POSTGRESQL, SQLITE, values
from outbox_relay.store.statements import staging as statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outbox_relay.core.row import NewRow
    from outbox_relay.store.inserting import Inserted
    from outbox_relay.store.raw import Connection
    from outbox_relay.store.schema import Tables

PAGE = 1_000
"""Rows a statement."""


UNSEEN = "roll back and try again (isolation levels above READ COMMITTED do this)"


class UnseenRowError(StagingError, sa.exc.OperationalError):
    """A dispatch key may belong to a row that this transaction's snapshot does not show.

    It is SQLAlchemy's error of a serialization failure too, for code that repeats a transaction when it meets one.
    """

    def __str__(self) -> str:
        what = "this transaction cannot see what was committed since it began, such as a row with the same dispatch key"
        return f"{what}: {UNSEEN}; {self.orig}"


def insert_rows(
    connection: Connection,
    tables: Tables,
    rows: Sequence[NewRow],
    *,
    wake: bool,
    open_namespaces: bool,
    sort: bool = True,
) -> list[Staged]:
    """Insert ``rows`` in the transaction of ``connection`` and return what came of each, in the same order.

    A row whose dispatch key is taken, within its namespace, by a row with the same content is not inserted again: the
    first row's id and task id come back, with ``created`` false. ``wake`` notifies the relays at commit (PostgreSQL).
    ``open_namespaces`` registers a namespace at its first use; otherwise an unknown one is refused.

    Rows go in in the order of their keys, in which every transaction inserts them, so that two that wait for each
    other's keys do not do so in a circle. Say ``sort=False`` for rows that stand in such an order already, or whose
    keys no other transaction can know.

    Raises:
        DispatchKeyConflict: the key is taken by other content; of this call's rows none stays.
        StagingError: a namespace is deprecated; or it is unknown, and namespaces are closed. No row of this call stays.
        UnseenRowError: a key belongs to a row that this transaction cannot see.
        StoreError: the outbox's tables are not there, or the database is one that the outbox does not know.
    """
    dialect = connection.dialect.name
    if dialect not in (POSTGRESQL, SQLITE):
        raise StoreError(f"the outbox does not stage on {dialect!r}: its databases are PostgreSQL and SQLite")
    unique = {rows[0].key: rows[0]} if len(rows) == 1 else _first_of_each_key(rows, sort=sort)
    try:
        fresh = _namespaces(connection, tables, unique, open_namespaces=open_namespaces)
        known = _insert(connection, tables, unique, fresh, wake=wake)
    except (sa.exc.ProgrammingError, sa.exc.OperationalError) as error:
        if is_missing_table(error):
            raise StoreError(MIGRATE_HINT) from error
        if error.orig is not None and getattr(error.orig, "sqlstate", None) == SERIALIZATION_FAILURE:
            raise UnseenRowError(error.statement, error.params, error.orig, error.hide_parameters) from error
        raise
    if len(unique) == len(rows):
        return [known[row.key] for row in rows]
    return [one if unique[row.key] is row else replace(one, created=False) for row in rows for one in [known[row.key]]]


def keep_unpublished(connection: Connection, tables: Tables, ids: Sequence[int]) -> None:
    """End rows that this transaction has inserted before anybody sees them: their tasks were sent in another way."""
    dialect = connection.dialect.name
    for start in range(0, len(ids), PAGE):
        statement = statements.keep_unpublished(tables, dialect)
        connection.execute(statement, {**values(dialect, "ids", id=ids[start : start + PAGE]), "reason": SHADOW})


SHADOW = "a shadow: its task was sent directly"
_Key = tuple[str, str]


def _first_of_each_key(rows: Iterable[NewRow], *, sort: bool) -> dict[_Key, NewRow]:
    """The rows by key, in the order in which they are inserted."""
    unique: dict[_Key, NewRow] = {}
    for row in rows:
        first = unique.setdefault(row.key, row)
        if first is not row and first.content_hash != row.content_hash:
            raise _conflict(row)
    return dict(sorted(unique.items())) if sort and len(unique) > 1 else unique


def _namespaces(connection: Connection, tables: Tables, rows: Iterable[_Key], *, open_namespaces: bool) -> list[str]:
    """The namespaces that may have to be registered; the migration has registered ``default``.

    Where they are open, PostgreSQL registers them and looks at their state in the statement that inserts the rows.
    """
    names = sorted({namespace for namespace, _ in rows if namespace != DEFAULT_NAMESPACE})
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
            inserted = insert_page(connection, tables, page, fresh, wake=wake)
            for row_id, namespace, dispatch_key, *_ in inserted:
                key = (namespace, dispatch_key)
                known[key] = Staged(row_id=row_id, task_id=rows[key].task_id, dispatch_key=dispatch_key, created=True)
            if fresh and connection.dialect.name == POSTGRESQL:
                _refuse_deprecated(connection, tables, known, inserted)
        if len(known) == len(rows):
            return known
        missing = [key for key in missing if key not in known]
        if not missing:
            return known
        for found in _look_up(connection, tables, missing):
            key = (found.namespace, found.dispatch_key)
            if found.content_hash != rows[key].content_hash:
                take_back(connection, tables, known.values())
                raise _conflict(rows[key])
            known[key] = Staged(row_id=found.id, task_id=found.task_id, dispatch_key=found.dispatch_key, created=False)
        missing = [key for key in missing if key not in known]
        if not missing:
            return known
    raise StagingError(f"dispatch key {missing[0][1]!r} belongs to a row that this transaction cannot see: {UNSEEN}")


def _refuse_deprecated(
    connection: Connection, tables: Tables, known: dict[_Key, Staged], inserted: Sequence[Inserted]
) -> None:
    for found in inserted:
        if found.namespace_state == DEPRECATED:
            take_back(connection, tables, known.values())
            raise _deprecated(found.namespace)


_TRIES = 3  # a row may be pruned between the insert that met it and the look at it


def _look_up(connection: Connection, tables: Tables, keys: Sequence[_Key]) -> Iterable[Any]:
    dialect = connection.dialect.name
    for start in range(0, len(keys), PAGE):
        namespaces, dispatch_keys = zip(*keys[start : start + PAGE], strict=True)
        parameters = values(dialect, "keys", namespace=namespaces, dispatch_key=dispatch_keys)
        yield from connection.execute(statements.rows_of_keys(tables, dialect), parameters)


def take_back(connection: Connection, tables: Tables, staged: Iterable[Staged]) -> None:
    """Delete what a call has inserted before it failed: its caller may catch the error and commit."""
    dialect = connection.dialect.name
    created = [one.row_id for one in staged if one.created]
    for start in range(0, len(created), PAGE):
        connection.execute(
            statements.take_back(tables, dialect), values(dialect, "ids", id=created[start : start + PAGE])
        )


def _conflict(row: NewRow) -> DispatchKeyConflict:
    return DispatchKeyConflict(
        f"dispatch key {row.dispatch_key!r} of namespace {row.common.namespace!r} is taken by a row with another task, "
        "other arguments or another route: stage the same content again, or use another key"
    )
