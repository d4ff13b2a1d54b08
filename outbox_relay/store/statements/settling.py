"""What workers report, written back to rows that were locked before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import POSTGRESQL, after, given, literal, now
from outbox_relay.store.statements.parts import CALM, WHERE_IT_RAN, cleared, number, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables


STATE_COLUMNS = ("id", "task_id", "status", "claim_token", "attempt", "failures", "retries", "max_attempts")


@statement
def lock_states(tables: Tables, dialect: str) -> sa.Select[Any]:
    """The rows that settlements are about, locked in the order of their ids; ``life``: how long a message lives."""
    row = tables.row
    ids = given(dialect, "ids", id=sa.BigInteger())
    over = row.c.published_at <= after(-sa.bindparam("life", type_=sa.Float()))
    return (
        sa.select(*(row.c[name] for name in STATE_COLUMNS), sa.func.coalesce(over, sa.false()).label("message_over"))
        .select_from(row.join(ids, row.c.id == ids.c.id))
        .order_by(row.c.id)
        .with_for_update(of=row)
    )


def _done(note: sa.ColumnElement[Any]) -> dict[str, Any]:
    changes = {"status": literal("done"), "parked": sa.false(), "settled_at": now(), "error": note}
    return {**cleared(), **CALM, **changes}


@statement
def settle_done(tables: Tables, dialect: str) -> sa.Update:
    """Rows whose task ran to its end, locked before by :func:`lock_states`."""
    row = tables.row
    ids = given(dialect, "ids", id=sa.BigInteger(), note=sa.Text())
    return sa.update(row).where(row.c.id == ids.c.id).values(_done(ids.c.note))


@statement
def lock_and_settle_done(tables: Tables) -> sa.Select[Any]:
    """PostgreSQL: as :func:`lock_states`, and settles in the same statement the rows that are nothing but done.

    Nearly every report is of a task that ran to its end, and nearly every row of it is done by that: ``settled`` says
    which were. ``done_as`` is the task id of such a report, NULL for every other one. The states are those before.
    """
    row = tables.row
    ids = given(POSTGRESQL, "ids", id=sa.BigInteger(), done_as=sa.Text(), note=sa.Text())
    over = row.c.published_at <= after(-sa.bindparam("life", type_=sa.Float()))
    locked = (
        sa.select(
            *(row.c[name] for name in STATE_COLUMNS),
            sa.func.coalesce(over, sa.false()).label("message_over"),
            ids.c.done_as,
            ids.c.note,
        )
        .select_from(row.join(ids, row.c.id == ids.c.id))
        .order_by(row.c.id)
        .with_for_update(of=row)
        .cte("locked")
    )
    settled = (
        sa.update(row)
        .where(
            row.c.id == locked.c.id,
            locked.c.task_id == locked.c.done_as,
            locked.c.status != literal("done"),
            locked.c.status != literal("cancelled"),
        )
        .values(_done(locked.c.note))
        .returning(row.c.id)
        .cte("settled")
    )
    return sa.select(
        *(locked.c[name] for name in (*STATE_COLUMNS, "message_over")), settled.c.id.is_not(None).label("settled")
    ).select_from(locked.outerjoin(settled, settled.c.id == locked.c.id))


MOVED: dict[str, sa.types.TypeEngine[Any]] = {
    "id": sa.BigInteger(),
    "attempt": sa.BigInteger(),
    "failures": sa.BigInteger(),
    "retries": sa.BigInteger(),
    "error": sa.Text(),
    "delay": sa.Float(),
}


@statement
def settle_again(tables: Tables, dialect: str) -> sa.Update:
    """Rows that have to run again: pending, each after its own delay."""
    row = tables.row
    moved = given(dialect, "moved", **MOVED)
    return (
        sa.update(row)
        .where(row.c.id == moved.c.id)
        .values(
            {
                **cleared(),
                **CALM,
                **{name: moved.c[name] for name in ("attempt", "failures", "retries", "error")},
                "status": literal("pending"),
                "parked": sa.false(),
                "visible_after": after(moved.c.delay),
            }
        )
    )


def _ended(tables: Tables, dialect: str, status: str) -> sa.Update:
    row = tables.row
    moved = given(dialect, "moved", **MOVED)
    return (
        sa.update(row)
        .where(row.c.id == moved.c.id)
        .values(
            {
                **cleared(but=WHERE_IT_RAN if status == "failed" else ()),
                **CALM,
                **{name: moved.c[name] for name in ("attempt", "failures", "retries", "error")},
                "status": literal(status),
                "parked": sa.false(),
                "settled_at": now(),
            }
        )
    )


@statement
def settle_failed(tables: Tables, dialect: str) -> sa.Update:
    """Rows that ended for good without success: dead letters."""
    return _ended(tables, dialect, "failed")


@statement
def settle_cancelled(tables: Tables, dialect: str) -> sa.Update:
    """Rows whose worker says that the task was revoked, terminated or expired."""
    return _ended(tables, dialect, "cancelled")


@statement
def settle_returned(tables: Tables, dialect: str) -> sa.Update:
    """Rows whose message went back to the broker: the claim goes on, and the queue's lease counts again.

    ``from_publish`` says that messages expire on the broker: giving one back lengthens neither its life nor the lease.
    """
    row = tables.row
    ids = given(dialect, "ids", id=sa.BigInteger())
    lease = sa.bindparam("lease", type_=sa.Float())
    from_publish = sa.and_(sa.bindparam("from_publish", type_=sa.Boolean()), row.c.published_at.is_not(None))
    return (
        sa.update(row)
        .where(row.c.id == ids.c.id)
        .values(
            {
                **CALM,
                "status": literal("claimed"),
                "parked": sa.false(),
                "lease_until": sa.case((from_publish, after(lease, row.c.published_at)), else_=after(lease)),
                "started_at": sa.null(),
                "worker": sa.null(),
            }
        )
    )


@statement
def note_ran(tables: Tables, dialect: str) -> sa.Update:
    """What became of cancelled rows all the same: it is written down, once, and nothing else changes."""
    row = tables.row
    ids = given(dialect, "ids", id=sa.BigInteger(), note=sa.Text())
    nothing = sa.literal_column("''", sa.Text)
    before = sa.func.coalesce(row.c.error + sa.literal_column("'; '", sa.Text), nothing)
    place = sa.func.strpos if dialect == POSTGRESQL else sa.func.instr
    is_new = place(sa.func.coalesce(row.c.error, nothing), ids.c.note) == number(0)
    return sa.update(row).where(row.c.id == ids.c.id, is_new).values(error=before + ids.c.note)


RETRIED: dict[str, sa.types.TypeEngine[Any]] = {
    "body": sa.LargeBinary(),
    "content_type": sa.Text(),
    "content_encoding": sa.Text(),
    "headers": sa.LargeBinary(),
    "properties": sa.LargeBinary(),
    "task_queue": sa.Text(),
    "exchange": sa.Text(),
    "routing_key": sa.Text(),
}


@statement
def change_messages(tables: Tables, dialect: str) -> sa.Update:
    """The messages of retries, where they differ from what the rows have; NULL leaves a column as it is.

    Bytes do not go into SQLite's JSON, so there it is one row an execution (``executemany``).
    """
    row = tables.row
    if dialect == POSTGRESQL:
        changed = given(dialect, "message", id=sa.BigInteger(), **RETRIED, expires_at=Instant())
        return sa.update(row).where(row.c.id == changed.c.id).values(_changed(row, changed.c))
    binds = {name: sa.bindparam(f"message_{name}", type_=type_) for name, type_ in RETRIED.items()}
    binds["expires_at"] = sa.bindparam("message_expires_at", type_=Instant())
    return (
        sa.update(row).where(row.c.id == sa.bindparam("message_id", type_=sa.BigInteger())).values(_changed(row, binds))
    )


def _changed(row: sa.FromClause, new: Any) -> dict[str, Any]:
    """``expires`` is one of the headers: where they are new, it is what they say, also when they say nothing."""
    kept = sa.case((new["headers"].is_(None), row.c.expires_at), else_=new["expires_at"])
    return {**{name: sa.func.coalesce(new[name], row.c[name]) for name in RETRIED}, "expires_at": kept}


@statement
def set_aside(tables: Tables) -> sa.Insert:
    """Keep a report that the database refuses, with the reason."""
    aside = tables.aside
    return sa.insert(aside).values(
        row_id=sa.bindparam("row_id", type_=sa.BigInteger()),
        kind=sa.bindparam("kind", type_=sa.Text()),
        body=sa.bindparam("body", type_=sa.LargeBinary()),
        reason=sa.bindparam("reason", type_=sa.Text()),
        created_at=now(),
    )
