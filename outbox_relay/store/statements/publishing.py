"""What becomes of a relay's claims: fenced by the token of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.sql import POSTGRESQL, after, given, literal, now
from outbox_relay.store.statements.parts import cleared, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables


def _locked(tables: Tables, dialect: str, claims: sa.FromClause, *columns: sa.ColumnElement[Any]) -> sa.FromClause:
    """The claims' rows that still have their token, locked in the order of their ids.

    A subquery on SQLite: Python's driver counts no changed rows for a statement that starts with WITH.
    """
    row = tables.row
    locked = (
        sa.select(row.c.id, *columns)
        .select_from(row.join(claims, sa.and_(row.c.id == claims.c.id, row.c.claim_token == claims.c.token)))
        .order_by(row.c.id)
        .with_for_update(of=row)
    )
    return locked.cte("locked") if dialect == POSTGRESQL else locked.subquery("locked")


def _fenced(tables: Tables, dialect: str, changes: dict[str, Any]) -> sa.Update:
    claims = given(dialect, "claims", id=sa.BigInteger(), token=sa.Uuid())
    locked = _locked(tables, dialect, claims)
    return sa.update(tables.row).where(tables.row.c.id == locked.c.id).values(changes)


@statement
def mark_published(tables: Tables, dialect: str) -> sa.Update:
    """The broker has confirmed the messages: the queue lease begins.

    A worker may have been quicker than the relay: where a beacon says that the task runs already, its lease stands.
    A row that was re-armed while the broker took its message is claimed again: the message is out. It is not where that
    worker has come and gone: the row was re-armed for it, and has no lease that would ever end.
    """
    row = tables.row
    claims = given(dialect, "claims", id=sa.BigInteger(), token=sa.Uuid(), to=sa.Text())
    locked = _locked(tables, dialect, claims, claims.c.to)
    lease = after(sa.bindparam("lease", type_=sa.Float()))
    out = row.c.started_at.is_(None)
    return (
        sa.update(row)
        .where(row.c.id == locked.c.id)
        .values(
            status=sa.case((out, literal("claimed")), else_=row.c.status),
            parked=sa.case((out, sa.false()), else_=row.c.parked),
            published_at=now(),
            published_to=locked.c.to,
            lease_until=sa.case((out, lease), else_=row.c.lease_until),
            error=sa.null(),
        )
    )


@statement
def mark_final(tables: Tables, dialect: str) -> sa.Update:
    """As :func:`mark_published`, for rows that settle on publish: confirmed is done."""
    changes = {**cleared(), "status": literal("done"), "parked": sa.false(), "settled_at": now(), "error": sa.null()}
    return _fenced(tables, dialect, changes)


@statement
def release(tables: Tables, dialect: str) -> sa.Update:
    """Rows that were not sent are due again at once."""
    changes = {**cleared(), "status": literal("pending"), "parked": sa.false(), "visible_after": now()}
    return _fenced(tables, dialect, changes)


@statement
def postpone(tables: Tables, dialect: str) -> sa.Update:
    """Rows that the broker does not take wait; no attempt is spent, the reason is kept."""
    changes = {
        **cleared(),
        "status": literal("pending"),
        "parked": sa.false(),
        "visible_after": after(sa.bindparam("delay", type_=sa.Float())),
        "error": sa.bindparam("reason", type_=sa.Text()),
    }
    return _fenced(tables, dialect, changes)


@statement
def fail_unsendable(tables: Tables, dialect: str) -> sa.Update:
    """Rows that no broker would take fail for good, each with its reason."""
    row = tables.row
    claims = given(dialect, "claims", id=sa.BigInteger(), token=sa.Uuid(), reason=sa.Text())
    locked = _locked(tables, dialect, claims, claims.c.reason)
    changes = {
        **cleared(),
        "status": literal("failed"),
        "parked": sa.false(),
        "settled_at": now(),
        "error": locked.c.reason,
    }
    return sa.update(row).where(row.c.id == locked.c.id).values(changes)


@statement
def expire(tables: Tables, dialect: str) -> sa.Update:
    """Rows whose own ``expires`` has passed are cancelled instead of published."""
    changes = {
        **cleared(),
        "status": literal("cancelled"),
        "parked": sa.false(),
        "settled_at": now(),
        "error": sa.bindparam("reason", type_=sa.Text()),
    }
    return _fenced(tables, dialect, changes)
