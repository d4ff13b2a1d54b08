"""Rows inserted in the caller's own transaction, the quickest way for their number."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from outbox_relay.core.placement import DEFAULT_NAMESPACE
from outbox_relay.core.row import Staged
from outbox_relay.errors import DispatchKeyConflict, StagingError, StoreError
from outbox_relay.store.engine import MIGRATE_HINT, is_missing_table
from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import POSTGRESQL, SQLITE, after, clock, given, latest, values
from outbox_relay.store.wake import channel_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outbox_relay.core.row import NewRow
    from outbox_relay.store.schema import Tables

statement = lru_cache(maxsize=64)

PAGE = 1_000
"""Rows a statement."""

COLUMNS: dict[str, Any] = {
    "namespace": sa.Text(),
    "dispatch_key": sa.Text(),
    "content_hash": sa.LargeBinary(),
    "workflow_id": sa.Text(),
    "run_id": sa.Text(),
    "ordinal": sa.BigInteger(),
    "task_queue": sa.Text(),
    "node": sa.Text(),
    "exchange": sa.Text(),
    "routing_key": sa.Text(),
    "task": sa.Text(),
    "task_id": sa.Text(),
    "body": sa.LargeBinary(),
    "content_type": sa.Text(),
    "content_encoding": sa.Text(),
    "headers": sa.LargeBinary(),
    "properties": sa.LargeBinary(),
    "retries": sa.Integer(),
    "max_attempts": sa.Integer(),
    "settle_on": sa.Text(),
    "expires_at": Instant(),
}
"""The columns that staging writes as they are given; when the row is due is worked out by the database."""

_DUE: dict[str, Any] = {"due_at": Instant(), "delay": sa.Float()}


def insert_rows(
    connection: sa.Connection, tables: Tables, rows: Sequence[NewRow], *, wake: bool, open_namespaces: bool
) -> list[Staged]:
    """Insert ``rows`` in the transaction of ``connection`` and return what came of each, in the same order.

    A row whose dispatch key is taken, within its namespace, by a row with the same content is not inserted again: the
    first row's id and task id come back, with ``created`` false. ``wake`` notifies the relays at commit (PostgreSQL).
    ``open_namespaces`` registers a namespace at its first use; otherwise an unknown one is refused.

    Raises:
        DispatchKeyConflict: the key is taken by other content; of this call's rows none stays.
        StagingError: a namespace is unknown, and namespaces are closed.
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


def _namespaces(connection: sa.Connection, tables: Tables, rows: Iterable[_Key], *, open_namespaces: bool) -> list[str]:
    """The namespaces that may have to be registered; the migration has registered ``default``."""
    names = sorted({namespace for namespace, _ in rows} - {DEFAULT_NAMESPACE})
    if not names or open_namespaces:
        return names
    parameters = values(connection.dialect.name, "names", namespace=names)
    registered = set(connection.execute(registered_namespaces(tables, connection.dialect.name), parameters).scalars())
    if unknown := [name for name in names if name not in registered]:
        raise StagingError(
            f"namespace {unknown[0]!r} is not known, and namespaces are closed here: "
            f"make it with 'outbox namespace set {unknown[0]}', or set outbox_namespaces = 'open'"
        )
    return []


def _insert(
    connection: sa.Connection, tables: Tables, rows: dict[_Key, NewRow], fresh: list[str], *, wake: bool
) -> dict[_Key, Staged]:
    known: dict[_Key, Staged] = {}
    missing = list(rows)
    for _ in range(_TRIES):
        for start in range(0, len(missing), PAGE):
            page = [rows[key] for key in missing[start : start + PAGE]]
            for found in _insert_page(connection, tables, page, fresh, wake=wake):
                key = (found.namespace, found.dispatch_key)
                known[key] = Staged(
                    row_id=found.id, task_id=rows[key].message.task_id, dispatch_key=found.dispatch_key, created=True
                )
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


_TRIES = 3  # a row may be pruned between the insert that met it and the look at it


def _insert_page(
    connection: sa.Connection, tables: Tables, page: list[NewRow], fresh: list[str], *, wake: bool
) -> Sequence[Any]:
    dialect = connection.dialect.name
    parameters: Any
    if dialect == SQLITE:
        if fresh:
            connection.execute(mint_namespaces(tables), [{"fresh": name} for name in fresh])
        parameters = [_parameters(row) for row in page]
        return connection.execute(insert_values(tables, dialect), parameters).all()
    channel = channel_name(tables) if wake else None
    if len(page) == 1:
        statement_ = insert_values(tables, dialect, bool(fresh), channel)
        parameters = _parameters(page[0])
    else:
        statement_ = insert_arrays(tables, bool(fresh), channel)
        columns = list(zip(*(_parameters(row).values() for row in page), strict=True))
        parameters = values(dialect, "rows", **dict(zip((*COLUMNS, *_DUE), columns, strict=True)))
    if fresh:
        parameters.update(values(dialect, "fresh", namespace=fresh))
    return connection.execute(statement_, parameters).all()


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


def _look_up(connection: sa.Connection, tables: Tables, keys: Sequence[_Key]) -> Iterable[Any]:
    dialect = connection.dialect.name
    for start in range(0, len(keys), PAGE):
        namespaces, dispatch_keys = zip(*keys[start : start + PAGE], strict=True)
        parameters = values(dialect, "keys", namespace=namespaces, dispatch_key=dispatch_keys)
        yield from connection.execute(rows_of_keys(tables, dialect), parameters)


def _take_back(connection: sa.Connection, tables: Tables, known: dict[_Key, Staged]) -> None:
    """Delete what this call inserted: the caller may catch the error and commit."""
    dialect = connection.dialect.name
    created = [one.row_id for one in known.values() if one.created]
    for start in range(0, len(created), PAGE):
        connection.execute(take_back(tables, dialect), values(dialect, "ids", id=created[start : start + PAGE]))


def _conflict(row: NewRow) -> DispatchKeyConflict:
    return DispatchKeyConflict(
        f"dispatch key {row.dispatch_key!r} of namespace {row.namespace!r} is taken by a row with another task, "
        "other arguments or another route: stage the same content again, or use another key"
    )


# -- the statements --------------------------------------------------------------------------------------------------


def _instants(source: Any) -> dict[str, Any]:
    """When the row is due: never before it is staged, so that relays need not look far back for new rows."""
    asked = sa.func.coalesce(source["due_at"], after(source["delay"], clock()))
    return {"visible_after": latest(clock(), sa.type_coerce(asked, Instant())), "created_at": clock()}


def _returning(insert: Any, tables: Tables, channel: str | None) -> Any:
    """A notification is folded into RETURNING: it costs no statement, and none goes out where nothing was inserted."""
    row = tables.row
    notify = [] if channel is None else [sa.func.pg_notify(sa.literal_column(f"'{channel}'"), sa.literal_column("''"))]
    return insert.returning(row.c.id, row.c.namespace, row.c.dispatch_key, *notify)


def _minting(tables: Tables) -> sa.CTE:
    names = given(POSTGRESQL, "fresh", namespace=sa.Text())
    source = sa.select(names.c.namespace, clock()).order_by(names.c.namespace)
    insert = postgresql.insert(tables.namespace).from_select(["namespace", "created_at"], source)
    return insert.on_conflict_do_nothing().cte("minted")


@statement
def mint_namespaces(tables: Tables) -> sa.Insert:
    """SQLite: register namespaces at their first use."""
    insert = sqlite.insert(tables.namespace).values(
        namespace=sa.bindparam("fresh", type_=sa.Text()), created_at=clock()
    )
    return insert.on_conflict_do_nothing()


@statement
def insert_values(tables: Tables, dialect: str, fresh: bool = False, channel: str | None = None) -> sa.Insert:
    """Insert a row (SQLite: rows); one whose key is taken is left out, and the transaction goes on."""
    insert: Any = (postgresql if dialect == POSTGRESQL else sqlite).insert(tables.row)
    binds = {name: sa.bindparam(name, type_=type_) for name, type_ in (COLUMNS | _DUE).items()}
    insert = insert.values({name: binds[name] for name in COLUMNS} | _instants(binds)).on_conflict_do_nothing()
    if fresh:
        insert = insert.add_cte(_minting(tables))
    inserted: sa.Insert = _returning(insert, tables, channel)
    return inserted


@statement
def insert_arrays(tables: Tables, fresh: bool = False, channel: str | None = None) -> sa.Insert:
    """PostgreSQL: insert many rows, one array a column, so that the SQL is the same for any number of them."""
    rows = given(POSTGRESQL, "rows", **COLUMNS, **_DUE)
    instants = _instants(rows.c)
    source = sa.select(*(rows.c[name] for name in COLUMNS), *instants.values())
    insert: Any = postgresql.insert(tables.row).from_select([*COLUMNS, *instants], source).on_conflict_do_nothing()
    if fresh:
        insert = insert.add_cte(_minting(tables))
    inserted: sa.Insert = _returning(insert, tables, channel)
    return inserted


@statement
def rows_of_keys(tables: Tables, dialect: str) -> sa.Select[Any]:
    """The rows that have the keys already. A statement of its own: only a later one sees what the insert waited for."""
    row = tables.row
    keys = given(dialect, "keys", namespace=sa.Text(), dispatch_key=sa.Text())
    same = sa.and_(row.c.namespace == keys.c.namespace, row.c.dispatch_key == keys.c.dispatch_key)
    columns = (row.c.id, row.c.namespace, row.c.dispatch_key, row.c.task_id, row.c.content_hash)
    return sa.select(*columns).select_from(row.join(keys, same))


@statement
def registered_namespaces(tables: Tables, dialect: str) -> sa.Select[Any]:
    """Which of the names are registered."""
    names = given(dialect, "names", namespace=sa.Text())
    column = tables.namespace.c.namespace
    return sa.select(column).select_from(tables.namespace.join(names, column == names.c.namespace))


@statement
def take_back(tables: Tables, dialect: str) -> sa.Delete:
    """Delete rows that this transaction has inserted."""
    ids = given(dialect, "ids", id=sa.BigInteger())
    return sa.delete(tables.row).where(tables.row.c.id.in_(sa.select(ids.c.id)))
