"""Rows that a hold or their placement keeps back: out of the due indexes, and back into them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from outbox_relay.core.namespaces import Scope
from outbox_relay.store.sql import POSTGRESQL
from outbox_relay.store.statements.parts import statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables


def held_column(tables: Tables, scope: Scope) -> sa.ColumnElement[str]:
    """The column of a row that a hold's value is compared with."""
    row = tables.row
    return {Scope.WORKFLOW: row.c.workflow_id, Scope.NAMESPACE: row.c.namespace, Scope.TASK: row.c.task}[scope]


def parked() -> sa.TextClause:
    """The predicate of the index of parked rows, word for word in every dialect."""
    return sa.text("parked")


@statement
def unpark(tables: Tables, dialect: str, scope: Scope) -> sa.Update:
    """Put what a hold kept back into the due indexes, a batch at a time, whatever else may keep it back.

    Which is looked at again by the next claim, and by those who park.
    """
    row = tables.row
    wanted = (
        sa.select(row.c.id)
        .where(parked(), held_column(tables, scope) == sa.bindparam("value", type_=sa.Text()))
        .order_by(row.c.id)
        .limit(sa.bindparam("limit", type_=sa.BigInteger()))
        .with_for_update(of=row)
    )
    return _moved(tables, dialect, wanted, parked=False)


def _moved(tables: Tables, dialect: str, wanted: sa.Select[int], *, parked: bool) -> sa.Update:
    """A subquery on SQLite: Python's driver counts no changed rows for a statement that starts with WITH."""
    row = tables.row
    source: sa.FromClause = wanted.cte("wanted") if dialect == POSTGRESQL else wanted.subquery("wanted")
    return sa.update(row).where(row.c.id == source.c.id).values(parked=sa.true() if parked else sa.false())
