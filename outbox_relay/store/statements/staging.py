"""Insert rows in the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import POSTGRESQL, after, clock, given, latest, literal, now
from outbox_relay.store.statements.governing import registering
from outbox_relay.store.statements.parts import statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables

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

DUE: dict[str, Any] = {"due_at": Instant(), "delay": sa.Float()}
OWN = ("dispatch_key", "content_hash", "task_id", "body", "headers", "properties", "ordinal")
"""What is another value in each row, of rows that are otherwise alike."""

OPTIONAL = frozenset({"workflow_id", "run_id", "ordinal", "retries", "max_attempts", "settle_on", "expires_at"})
"""What a plain row leaves at the column's default."""


def _instants(source: Any) -> dict[str, Any]:
    """When the row is due: never before it is staged, so that relays need not look far back for new rows."""
    asked = sa.func.coalesce(source["due_at"], after(source["delay"], clock()))
    return {"visible_after": latest(clock(), sa.type_coerce(asked, Instant())), "created_at": clock()}


def _finished(insert: Any, tables: Tables, channel: str | None, *, fresh: bool) -> sa.Insert:
    """Leave out what is there already, and say what was inserted.

    A notification is folded into RETURNING: it costs no statement, and none goes out where nothing was inserted.

    So is the state of the row's namespace: one that is deprecated takes no row, and the caller takes this one back.
    """
    row, namespace = tables.row, tables.namespace
    columns: list[Any] = [row.c.id, row.c.namespace, row.c.dispatch_key]
    if channel is not None:
        columns.append(sa.func.pg_notify(sa.literal_column(f"'{channel}'"), sa.literal_column("''")))
    if fresh:
        mine: Any = sa.literal_column(f'"{row.name}".namespace')  # Core does not correlate what stands in RETURNING
        state = sa.select(namespace.c.state).where(namespace.c.namespace == mine)
        columns.append(state.scalar_subquery().label("namespace_state"))
        insert = insert.add_cte(registering(tables).cte("minted"))
    finished: sa.Insert = insert.on_conflict_do_nothing().returning(*columns)
    return finished


@statement
def mint_namespaces(tables: Tables) -> sa.Insert:
    """SQLite: register namespaces at their first use."""
    insert = sqlite.insert(tables.namespace).values(
        namespace=sa.bindparam("fresh", type_=sa.Text()), created_at=clock()
    )
    return insert.on_conflict_do_nothing()


@statement
def insert_values(
    tables: Tables, dialect: str, fresh: bool = False, channel: str | None = None, plain: bool = False
) -> sa.Insert:
    """Insert a row (SQLite: rows); one whose key is taken is left out, and the transaction goes on.

    A ``plain`` row has no optional column, and is due at once: half the parameters are left to send and to read.
    """
    insert: Any = (postgresql if dialect == POSTGRESQL else sqlite).insert(tables.row)
    types = {name: type_ for name, type_ in COLUMNS.items() if name not in OPTIONAL} if plain else COLUMNS | DUE
    binds = {name: sa.bindparam(name, type_=type_) for name, type_ in types.items()}
    instants = {"visible_after": clock(), "created_at": clock()} if plain else _instants(binds)
    columns = {name: bind for name, bind in binds.items() if name in COLUMNS}
    return _finished(insert.values(columns | instants), tables, channel, fresh=fresh)


@statement
def insert_alike(tables: Tables, fresh: bool = False, channel: str | None = None) -> sa.Insert:
    """PostgreSQL: insert many rows that are due at once and have all in common but ``OWN``.

    Three times as fast as an array for each column: most of those would hold one value many times.
    """
    rows = given(POSTGRESQL, "rows", **{name: COLUMNS[name] for name in OWN})
    names = [name for name in COLUMNS if name != "expires_at"]
    columns = [rows.c[name] if name in OWN else sa.bindparam(name, type_=COLUMNS[name]) for name in names]
    source = sa.select(*columns, clock(), clock())
    insert = postgresql.insert(tables.row).from_select([*names, "visible_after", "created_at"], source)
    return _finished(insert, tables, channel, fresh=fresh)


@statement
def insert_arrays(tables: Tables, fresh: bool = False, channel: str | None = None) -> sa.Insert:
    """PostgreSQL: insert many rows, one array a column, so that the SQL is the same for any number of them."""
    rows = given(POSTGRESQL, "rows", **COLUMNS, **DUE)
    instants = _instants(rows.c)
    source = sa.select(*(rows.c[name] for name in COLUMNS), *instants.values())
    insert = postgresql.insert(tables.row).from_select([*COLUMNS, *instants], source)
    return _finished(insert, tables, channel, fresh=fresh)


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
    """Which of the names are registered, and in which state."""
    names = given(dialect, "names", namespace=sa.Text())
    known = tables.namespace
    columns = known.c.namespace, known.c.state
    return sa.select(*columns).select_from(known.join(names, known.c.namespace == names.c.namespace))


@statement
def take_back(tables: Tables, dialect: str) -> sa.Delete:
    """Delete rows that this transaction has inserted."""
    ids = given(dialect, "ids", id=sa.BigInteger())
    return sa.delete(tables.row).where(tables.row.c.id.in_(sa.select(ids.c.id)))


@statement
def keep_unpublished(tables: Tables, dialect: str) -> sa.Update:
    """End rows that this transaction has inserted, so that no relay ever claims them."""
    row, ids = tables.row, given(dialect, "ids", id=sa.BigInteger())
    return (
        sa.update(row)
        .where(row.c.id.in_(sa.select(ids.c.id)))
        .values(status=literal("cancelled"), settled_at=now(), error=sa.bindparam("reason", type_=sa.Text()))
    )
