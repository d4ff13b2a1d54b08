"""Rows that a hold or their placement keeps back: out of the due indexes, and back into them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.core.namespaces import Scope
from outbox_relay.store.sql import POSTGRESQL, literal, now
from outbox_relay.store.statements.directives import named, waits_for_node
from outbox_relay.store.statements.parts import due, number, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables


def held_column(row: sa.FromClause, scope: Scope) -> sa.ColumnElement[str]:
    """The column of a row that a hold's value is compared with."""
    return {Scope.WORKFLOW: row.c.workflow_id, Scope.NAMESPACE: row.c.namespace, Scope.TASK: row.c.task}[scope]


def parked() -> sa.TextClause:
    """The predicate of the index of parked rows, word for word in every dialect."""
    return sa.text("parked")


@statement
def unpark(tables: Tables, dialect: str, scope: Scope) -> sa.Update:
    """Put what a hold kept back into the due indexes, a batch at a time, whatever else may keep it back.

    Which is looked at again by the next claim, and by those who park. A namespace is compared in a way that no index
    on it serves: those have all its rows, and this is about its parked ones.
    """
    row = tables.row
    column = held_column(row, scope)
    if scope is Scope.NAMESPACE:
        column = column + sa.literal_column("''", sa.Text)
    wanted = (
        sa.select(row.c.id)
        .where(parked(), column == sa.bindparam("value", type_=sa.Text()))
        .order_by(row.c.id)
        .limit(sa.bindparam("limit", type_=sa.BigInteger()))
        .with_for_update(of=row)
    )
    return _moved(tables, dialect, wanted, parked=False)


@statement
def park(tables: Tables, dialect: str) -> sa.Select[Any]:
    """PostgreSQL: take due rows that are kept back out of the due indexes, and say how far it looked.

    It looks at the head of each namespace, ``depth`` rows at most, and at ``limit`` rows in all, beginning with the
    namespace whose turn it is: a backlog of others neither hides such rows nor makes the statement long. Holds are
    read FOR SHARE, so that whoever deletes one waits until the rows are parked, and then finds them all.
    """
    row, namespace = tables.row, tables.namespace
    holds = sa.select(tables.hold.c.scope, tables.hold.c.value).with_for_update(read=True).cte("holds")
    turn = sa.bindparam("turn", type_=sa.Text())
    order = (namespace.c.namespace <= turn, namespace.c.namespace)
    known = sa.select(namespace.c.namespace).order_by(*order).subquery("known")
    head = (
        sa.select(row.c.id, row.c.namespace)
        .where(due(tables), row.c.namespace == known.c.namespace, row.c.visible_after <= now())
        .order_by(row.c.visible_after, row.c.id)
        .limit(sa.bindparam("depth", type_=sa.BigInteger()))
        .lateral("head")
    )
    limit = sa.bindparam("limit", type_=sa.BigInteger())
    seen = sa.select(head).select_from(known.join(head, sa.true())).limit(limit).cte("seen")
    wanted = (
        sa.select(row.c.id)
        .select_from(row.join(seen, row.c.id == seen.c.id))
        .where(due(tables), _kept_back(row, holds, dialect))
        .order_by(row.c.id)
        .with_for_update(skip_locked=True, of=row)
    )
    moved = _moved(tables, dialect, wanted, parked=True).returning(row.c.id).cte("moved")
    last = (
        sa.select(seen.c.namespace)
        .order_by((seen.c.namespace <= turn).desc(), seen.c.namespace.desc())
        .limit(number(1))
    )
    columns: list[Any] = [
        sa.select(sa.func.count()).select_from(moved).scalar_subquery().label("moved"),
        sa.select(sa.func.count()).select_from(seen).scalar_subquery().label("seen"),
        last.scalar_subquery().label("turn"),
    ]
    return sa.select(*columns)


@statement
def park_all(tables: Tables, dialect: str) -> sa.Update:
    """SQLite: take due rows that are kept back out of the due indexes, the oldest first."""
    row = tables.row
    wanted = (
        sa.select(row.c.id)
        .where(due(tables), row.c.visible_after <= now(), _kept_back(row, tables.hold, dialect))
        .order_by(row.c.visible_after, row.c.id)
        .limit(sa.bindparam("limit", type_=sa.BigInteger()))
    )
    return _moved(tables, dialect, wanted, parked=True)


@statement
def parked_page(tables: Tables) -> sa.Select[Any]:
    """The next parked rows in the order of their ids: how many there are, at most ``limit``, and the last one."""
    row = tables.row
    page = (
        sa.select(row.c.id)
        .where(parked(), row.c.id > sa.bindparam("after", type_=sa.BigInteger()))
        .order_by(row.c.id)
        .limit(sa.bindparam("limit", type_=sa.BigInteger()))
        .subquery("page")
    )
    columns: list[Any] = [sa.func.count().label("rows"), sa.func.max(page.c.id).label("last")]
    return sa.select(*columns).select_from(page)


@statement
def reconcile(tables: Tables, dialect: str) -> sa.Update:
    """Put those of a page's rows back that nothing keeps any more."""
    row = tables.row
    after, last = (sa.bindparam(name, type_=sa.BigInteger()) for name in ("after", "last"))
    wanted = (
        sa.select(row.c.id)
        .where(parked(), row.c.id > after, row.c.id <= last, sa.not_(_kept_back(row, tables.hold, dialect)))
        .order_by(row.c.id)
        .with_for_update(skip_locked=True, of=row)
    )
    return _moved(tables, dialect, wanted, parked=False)


def _kept_back(row: sa.FromClause, holds: sa.FromClause, dialect: str) -> sa.ColumnElement[bool]:
    """Whether a row is held, or waits for a node, or its namespace's directive cannot be read; never NULL."""
    held = [
        column.in_(sa.select(holds.c.value).where(holds.c.scope == literal(scope.value)))
        for scope, column in ((scope, held_column(row, scope)) for scope in Scope)
    ]
    unreadable = row.c.namespace.in_(named(dialect, "unreadable"))
    return sa.func.coalesce(sa.or_(*held, unreadable, waits_for_node(row, dialect)), sa.false())


def _moved(tables: Tables, dialect: str, wanted: sa.Select[int], *, parked: bool) -> sa.Update:
    """As an array on PostgreSQL, which then goes by the primary key, whatever it makes of the number of the rows.

    A subquery on SQLite: Python's driver counts no changed rows for a statement that starts with WITH.
    """
    row = tables.row
    changed = sa.update(row).values(parked=sa.true() if parked else sa.false())
    if dialect == POSTGRESQL:
        return changed.where(row.c.id == sa.any_(sa.func.array(wanted.scalar_subquery())))
    source = wanted.subquery("wanted")
    return changed.where(row.c.id == source.c.id)
