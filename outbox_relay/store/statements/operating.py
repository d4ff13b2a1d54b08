"""What an operator asks and does; also pruning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from outbox_relay.core.lifecycle import Status
from outbox_relay.store.sql import POSTGRESQL, SQLITE, after, given, literal, now
from outbox_relay.store.statements.parking import parked
from outbox_relay.store.statements.parts import cleared, due, number, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables

_HIDDEN = {"body", "headers", "properties", "content_hash", "args", "kwargs"}


@statement
def counts(tables: Tables) -> sa.Select[Any]:
    """How many rows there are in each state: one scan of a partial index each, never of the table."""
    row = tables.row

    def count(*where: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
        return sa.select(sa.func.count()).where(*where).select_from(row).scalar_subquery()

    is_due, is_parked = due(tables), sa.and_(row.c.status == literal("pending"), row.c.parked)
    columns = {
        "due": count(is_due, row.c.visible_after <= now()),
        "delayed": count(is_due, row.c.visible_after > now()),
        "parked": count(is_parked),
        **{one.value: count(row.c.status == literal(one.value)) for one in Status if one is not Status.PENDING},
    }
    oldest = sa.select(sa.func.min(row.c.visible_after)).where(is_due).scalar_subquery()
    numbers: list[Any] = [value.label(name) for name, value in columns.items()]
    return sa.select(
        *numbers,
        sa.type_coerce(oldest, row.c.visible_after.type).label("oldest"),
        now().label("now"),
    )


@statement
def count_aside(tables: Tables) -> sa.Select[Any]:
    """How many reports could not be applied."""
    return sa.select(sa.func.count()).select_from(tables.aside)


def _details(tables: Tables) -> sa.Select[Any]:
    row = tables.row
    columns = [column for column in row.c if column.name not in _HIDDEN]
    is_due = sa.and_(due(tables), row.c.visible_after <= now())
    return sa.select(*columns, sa.func.length(row.c.body).label("body_bytes"), is_due.label("due"))


@statement
def list_rows(tables: Tables, status: str | None, which: frozenset[str]) -> sa.Select[Any]:
    """Rows of a status in the order of its index (next due first, latest settled first); of any: newest first."""
    row = tables.row
    limit = sa.bindparam("limit", type_=sa.BigInteger())
    matches = _matches(tables, which)
    if status is None:
        return _details(tables).where(*matches).order_by(row.c.id.desc()).limit(limit)
    if status == Status.PENDING.value:
        return _list_pending(tables, matches, limit)
    in_status = row.c.status == literal(Status(status).value)
    claimed = status == Status.CLAIMED.value
    order = (row.c.claimed_at, row.c.id) if claimed else (row.c.settled_at.desc(), row.c.id.desc())
    return _details(tables).where(in_status, *matches).order_by(*order).limit(limit)


def _list_pending(
    tables: Tables, matches: list[sa.ColumnElement[bool]], limit: sa.ColumnElement[int]
) -> sa.Select[Any]:
    """Pending rows are in two indexes: those that may become due, and those that are parked."""
    row = tables.row
    heads = (
        sa.select(row.c.id).where(due(tables), *matches).order_by(row.c.visible_after, row.c.id).limit(limit),
        sa.select(row.c.id).where(row.c.parked, *matches).order_by(row.c.id).limit(limit),
    )
    parts = [
        sa.select(head.subquery(name).c.id) for head, name in zip(heads, ("open_rows", "parked_rows"), strict=True)
    ]
    chosen = sa.union_all(*parts).subquery("chosen")
    pending = row.c.status == literal(Status.PENDING.value)
    details = _details(tables).where(pending, row.c.id.in_(sa.select(chosen.c.id)))
    return details.order_by(row.c.visible_after, row.c.id).limit(limit)


def _matches(tables: Tables, which: frozenset[str]) -> list[sa.ColumnElement[bool]]:
    """The conditions of a filter of which the named fields are given (all but its ids)."""
    row = tables.row
    text = sa.Text()
    conditions: dict[str, sa.ColumnElement[bool]] = {
        "namespace": row.c.namespace == sa.bindparam("wanted_namespace", type_=text),
        "task": row.c.task == sa.bindparam("wanted_task", type_=text),
        "workflow_id": row.c.workflow_id == sa.bindparam("wanted_workflow_id", type_=text),
        "error": row.c.error.contains(sa.bindparam("wanted_error", type_=text), escape="/"),
    }
    return [condition for name, condition in conditions.items() if name in which]


@statement
def rows_by_id(tables: Tables) -> sa.Select[Any]:
    """One row by its id."""
    return _details(tables).where(tables.row.c.id == sa.bindparam("id", type_=sa.BigInteger()))


@statement
def rows_by_key(tables: Tables) -> sa.Select[Any]:
    """Rows by dispatch key, in any namespace: one look into the unique index a registered namespace."""
    row, namespace = tables.row, tables.namespace
    return (
        _details(tables)
        .where(row.c.namespace.in_(sa.select(namespace.c.namespace)))
        .where(row.c.dispatch_key == sa.bindparam("key", type_=sa.Text()))
        .order_by(row.c.id)
    )


def _with_task_id(tables: Tables) -> sa.ColumnElement[bool]:
    return tables.row.c.task_id == sa.bindparam("key", type_=sa.Text())


@statement
def rows_in_flight_by_task_id(tables: Tables) -> sa.Select[Any]:
    """Rows that have not ended well, by task id: it reads what the partial indexes hold, and not the table."""
    row = tables.row
    indexes: list[Any] = [due(tables), parked(), *(row.c.status == literal(one) for one in _OPEN)]
    parts = []
    for number_, where in enumerate(indexes):
        part = sa.select(row.c.id).where(where, _with_task_id(tables)).subquery(f"part_{number_}")
        parts.append(sa.select(part.c.id))
    found = sa.union_all(*parts).subquery("found")
    return _details(tables).where(row.c.id.in_(sa.select(found.c.id))).order_by(row.c.id)


_OPEN = (Status.CLAIMED.value, Status.FAILED.value)


@statement
def rows_by_task_id(tables: Tables) -> sa.Select[Any]:
    """Rows by task id. There is no index for it, which every row would pay for: this reads the table."""
    return _details(tables).where(_with_task_id(tables)).order_by(tables.row.c.id)


# -- cancel, redrive, discard ----------------------------------------------------------------------------------------


def _chosen(tables: Tables, dialect: str, status: str, which: frozenset[str]) -> sa.Select[Any]:
    """The ids of rows in ``status`` that a filter means, locked in their order, at most ``limit``."""
    row = tables.row
    query = sa.select(row.c.id).where(row.c.status == literal(status), *_matches(tables, which))
    if "ids" in which:
        wanted = given(dialect, "ids", id=sa.BigInteger())
        query = query.where(row.c.id.in_(sa.select(wanted.c.id)))
    return query.order_by(row.c.id).limit(sa.bindparam("limit", type_=sa.BigInteger())).with_for_update(of=row)


@statement
def lock_for_cancel(tables: Tables, dialect: str, which: frozenset[str]) -> sa.Select[Any]:
    """Rows that may still be cancelled, with what a revoke has to know; locked in the order of their ids."""
    row = tables.row
    columns = (row.c.id, row.c.task_id, row.c.worker, row.c.published_to, row.c.status, row.c.claim_token)
    query = sa.select(*columns).where(row.c.status.in_((literal("pending"), literal("claimed"))))
    query = query.where(*_matches(tables, which))
    if "ids" in which:
        wanted = given(dialect, "ids", id=sa.BigInteger())
        query = query.where(row.c.id.in_(sa.select(wanted.c.id)))
    return query.order_by(row.c.id).limit(sa.bindparam("limit", type_=sa.BigInteger())).with_for_update(of=row)


@statement
def cancel(tables: Tables, dialect: str) -> sa.Update:
    """Cancel rows that were locked before."""
    row = tables.row
    ids = given(dialect, "ids", id=sa.BigInteger())
    changes = {**cleared(), "status": literal("cancelled"), "parked": sa.false(), "settled_at": now()}
    changes["error"] = sa.bindparam("reason", type_=sa.Text())
    return sa.update(row).where(row.c.id == ids.c.id).values(changes)


@statement
def redrive(tables: Tables, dialect: str, which: frozenset[str]) -> sa.Update:
    """Dead letters are due again, as new: nothing that was counted is counted any more; their last arguments stay."""
    row = tables.row
    chosen = _chosen(tables, dialect, "failed", which)
    source: sa.FromClause = chosen.cte("chosen") if dialect == POSTGRESQL else chosen.subquery("chosen")
    zeros = dict.fromkeys(("attempt", "failures", "retries", "rearms", "vanished", "silent"), number(0))
    return (
        sa.update(row)
        .where(row.c.id == source.c.id)
        .values({**cleared(), **zeros, "status": literal("pending"), "visible_after": now(), "settled_at": sa.null()})
    )


@statement
def discard(tables: Tables, dialect: str, which: frozenset[str]) -> sa.Executable:
    """Dead letters are deleted."""
    chosen = _chosen(tables, dialect, "failed", which)
    return sa.delete(tables.row).where(tables.row.c.id.in_(chosen)).returning(tables.row.c.id)


# -- prune -----------------------------------------------------------------------------------------------------------


@statement
def prune(tables: Tables, dialect: str, status: str) -> sa.Executable:
    """Delete the oldest rows that ended in ``status`` more than ``age`` seconds ago, a batch at a time.

    PostgreSQL goes from the index to the rows by their places, which halves what it reads; rows that are locked wait
    for the next time.
    """
    row = tables.row
    place: Any = sa.literal_column(f"{row.fullname}.ctid") if dialect == POSTGRESQL else row.c.id
    old = (
        sa.select(place)
        .select_from(row)
        .where(row.c.status == literal(status), row.c.settled_at < after(-sa.bindparam("age", type_=sa.Float())))
        .order_by(row.c.settled_at)
        .limit(sa.bindparam("limit", type_=sa.BigInteger()))
        .with_for_update(skip_locked=True)
    )
    chosen = row.c.id.in_(old) if dialect == SQLITE else place == sa.any_(sa.func.array(old.scalar_subquery()))
    return sa.delete(row).where(chosen).returning(row.c.id)


@statement
def forget_once(tables: Tables, dialect: str) -> sa.Delete:
    """Markers of rows that are gone."""
    ids = given(dialect, "ids", id=sa.BigInteger())
    return sa.delete(tables.once).where(tables.once.c.row_id.in_(sa.select(ids.c.id)))


@statement
def mark_once(tables: Tables, dialect: str) -> sa.Insert:
    """Note that a delivery's effects are committed with this transaction; no row comes back where they were before.

    It waits for another transaction that notes the same, and then knows how that one ended.
    """
    insert: Any = (postgresql if dialect == POSTGRESQL else sqlite).insert(tables.once)
    insert = insert.values(
        row_id=sa.bindparam("row_id", type_=sa.BigInteger()),
        task_id=sa.bindparam("task_id", type_=sa.Text()),
        created_at=now(),
    )
    noted: sa.Insert = insert.on_conflict_do_nothing().returning(tables.once.c.row_id)
    return noted


@statement
def old_markers(tables: Tables) -> sa.Select[Any]:
    """Markers that were made before a while, a page at a time in the order of their key."""
    once = tables.once
    last = sa.tuple_(sa.bindparam("row_id", type_=sa.BigInteger()), sa.bindparam("task_id", type_=sa.Text()))
    return (
        sa.select(once.c.row_id, once.c.task_id)
        .where(once.c.created_at < after(-sa.bindparam("age", type_=sa.Float())))
        .where(sa.tuple_(once.c.row_id, once.c.task_id) > last)
        .order_by(once.c.row_id, once.c.task_id)
        .limit(sa.bindparam("limit", type_=sa.BigInteger()))
    )


@statement
def rows_there(tables: Tables, dialect: str) -> sa.Select[Any]:
    """Which of the rows are still in the outbox."""
    ids = given(dialect, "ids", id=sa.BigInteger())
    return sa.select(tables.row.c.id).where(tables.row.c.id.in_(sa.select(ids.c.id)))


@statement
def forget_markers(tables: Tables, dialect: str) -> sa.Delete:
    """Markers by their key."""
    keys = given(dialect, "keys", row_id=sa.BigInteger(), task_id=sa.Text())
    key = sa.tuple_(tables.once.c.row_id, tables.once.c.task_id)
    return sa.delete(tables.once).where(key.in_(sa.select(keys.c.row_id, keys.c.task_id)))
