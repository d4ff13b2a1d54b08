"""Every statement of a relay: one named function each, with the reason for its shape.

Rules that hold for all of them:

- A status is a literal, never a parameter: a partial index cannot be proven from a parameter, and a prepared statement
  that went generic would read the whole table.
- The database's clock decides; the client gives spans, never instants of "now".
- Writes that end or move a claim are fenced by its token, without naming the status: the token is NULL
  wherever there is no claim.
- Rows are locked in the order of their ids before they are changed, so that two writers never wait for each other.

Functions are cached: the same tables and dialect give the same object, whose SQL is compiled once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import POSTGRESQL, after, given, literal, new_token, now

if TYPE_CHECKING:
    from datetime import datetime

    from outbox_relay.store.schema import Tables

statement = lru_cache(maxsize=256)

CLEARED: dict[str, Any] = {
    "claim_token": None,
    "claimed_at": None,
    "claimed_by": None,
    "lease_until": None,
    "published_at": None,
    "published_to": None,
    "started_at": None,
    "worker": None,
}
"""What every end of a claim clears. A row that leaves pending is not parked either."""

CALM: dict[str, Any] = {"vanished": sa.literal_column("0"), "silent": sa.literal_column("0")}
"""What a worker's report resets: the row neither vanished nor is its queue silent."""


def _number(value: int) -> sa.ColumnElement[int]:
    return sa.literal_column(str(value), sa.BigInteger())


def cleared() -> dict[str, Any]:
    return {name: sa.null() for name in CLEARED}


def due(tables: Tables) -> sa.ColumnElement[bool]:
    """The predicate of the due indexes, word for word."""
    row = tables.row
    return sa.and_(row.c.status == literal("pending"), sa.not_(row.c.parked))


# -- claim -----------------------------------------------------------------------------------------------------------


def _size(row: sa.FromClause) -> sa.ColumnElement[int]:
    """What a row will weigh in the relay's memory; the lengths are read without fetching the values."""
    return sa.func.length(row.c.body) + sa.func.length(row.c.headers) + sa.func.length(row.c.properties)


_MESSAGE = ("task", "task_id", "task_queue", "exchange", "routing_key", "body", "content_type", "content_encoding")
CLAIMED_COLUMNS = (
    *("id", "claim_token", "namespace", "node", *_MESSAGE, "headers", "properties"),
    *("attempt", "retries", "settle_on", "visible_after"),
)


def _take(tables: Tables, fits: sa.FromClause) -> sa.Update:
    row = tables.row
    return (
        sa.update(row)
        .where(row.c.id == fits.c.id)
        .values(
            {
                **cleared(),
                "status": literal("claimed"),
                "claim_token": new_token(),
                "claimed_at": now(),
                "claimed_by": sa.bindparam("by", type_=sa.Uuid()),
                "lease_until": after(sa.bindparam("lease", type_=sa.Float())),
            }
        )
        .returning(
            *(row.c[name] for name in CLAIMED_COLUMNS),
            sa.func.coalesce(row.c.expires_at <= now(), sa.false()).label("expired"),
        )
    )


def _within_bytes(found: sa.FromClause, *order: sa.ColumnElement[Any]) -> sa.CTE:
    """As many of the found rows as fit into memory together, and always the first: a running sum of their sizes."""
    before = (sa.func.sum(found.c.size).over(order_by=order, rows=(None, 0)) - found.c.size).label("before")
    measured = sa.select(found.c.id, before).subquery("measured")
    return (
        sa.select(measured.c.id).where(measured.c.before < sa.bindparam("max_bytes", type_=sa.BigInteger())).cte("fits")
    )


@statement
def claim_all(tables: Tables) -> sa.Select[Any]:
    """PostgreSQL: claim what is due while one namespace is registered, and say how many there are.

    One statement does it, because the update is a part of a select whose first columns come back even when nothing
    is due: the instant of the look, for the watermark, the number of namespaces and of due rows that were seen. With
    more than one namespace it claims nothing, since it could not be fair. SKIP LOCKED lets relays claim side by side.
    """
    row, namespace = tables.row, tables.namespace
    registered = sa.select(sa.func.count()).select_from(namespace).scalar_subquery()
    limit = sa.bindparam("limit", type_=sa.BigInteger())
    found = (
        sa.select(row.c.id, row.c.visible_after, _size(row).label("size"))
        .where(due(tables), row.c.visible_after <= now(), row.c.visible_after >= sa.bindparam("since", type_=Instant()))
        .where(registered <= _number(1))
        .order_by(row.c.visible_after, row.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("found")
    )
    claimed = _take(tables, _within_bytes(found, found.c.visible_after, found.c.id)).cte("claimed")
    seen = sa.select(sa.func.count()).select_from(found).scalar_subquery()
    look = sa.select(now().label("now"), registered.label("namespaces"), seen.label("seen")).subquery("look")
    return sa.select(look, claimed).select_from(look.outerjoin(claimed, sa.true()))


@statement
def due_namespaces(tables: Tables, dialect: str) -> sa.Select[Any]:
    """Which namespaces have due rows, in the order of their turn, and how many (counted only as far as it matters).

    It asks the registry, not the rows: one probe of an index a namespace, where DISTINCT would read every due row.
    Of at most ``limit`` namespaces, each is counted up to ten times its part, so that the count reads no more
    than about ten batches. Like :func:`claim_all` it gives one row even when nothing is due.
    """
    row, namespace = tables.row, tables.namespace
    limit = sa.bindparam("limit", type_=sa.BigInteger())
    turn = sa.bindparam("turn", type_=sa.Text())
    marks = given(dialect, "marks", namespace=sa.Text(), since=Instant())
    since = sa.func.coalesce(marks.c.since, sa.bindparam("since", type_=Instant()))
    known = (
        sa.select(namespace.c.namespace, sa.type_coerce(since, Instant()).label("since"))
        .select_from(namespace.outerjoin(marks, marks.c.namespace == namespace.c.namespace))
        .subquery("known")
    )

    def rows_of(source: sa.FromClause) -> sa.Select[Any]:
        return sa.select(_number(1).label("one")).where(
            due(tables),
            row.c.namespace == source.c.namespace,
            row.c.visible_after <= now(),
            row.c.visible_after >= source.c.since,
        )

    active = (
        sa.select(known.c.namespace, known.c.since)
        .where(rows_of(known).correlate(known).exists())
        .order_by(known.c.namespace <= turn, known.c.namespace)
        .limit(limit)
        .cte("active")
    )
    actives = sa.func.count(type_=sa.BigInteger())
    part = (limit + actives - _number(1)) // sa.func.nullif(actives, _number(0))  # rounded up
    cap = sa.select(part * _number(10)).select_from(active).scalar_subquery()
    some = rows_of(active).correlate(active).limit(cap).subquery("some")
    rows = sa.select(sa.func.count()).select_from(some).correlate(active).scalar_subquery()
    registered = sa.select(sa.func.count()).select_from(namespace).scalar_subquery()
    look = sa.select(now().label("now"), registered.label("namespaces")).subquery("look")
    counted = sa.select(active.c.namespace, rows.label("rows")).subquery("counted")
    return (
        sa.select(look, counted)
        .select_from(look.outerjoin(counted, sa.true()))
        .order_by(counted.c.namespace <= turn, counted.c.namespace)
    )


@statement
def claim_shares(tables: Tables, dialect: str) -> sa.Update:
    """Claim, of each namespace in the plan, the rows that are its share; oldest first within each.

    The byte limit goes round the namespaces too: first rows first. PostgreSQL locks, in a LATERAL, exactly the rows
    that it takes; SQLite, which has no LATERAL and nobody to lock out, numbers the head of each namespace.
    """
    row = tables.row
    plan = given(dialect, "plan", namespace=sa.Text(), share=sa.BigInteger(), since=Instant())
    head = sa.select(row.c.id, row.c.namespace, row.c.visible_after, _size(row).label("size")).where(
        due(tables),
        row.c.namespace == plan.c.namespace,
        row.c.visible_after <= now(),
        row.c.visible_after >= plan.c.since,
    )
    if dialect == POSTGRESQL:
        taken = (
            head.order_by(row.c.visible_after, row.c.id)
            .limit(plan.c.share)
            .with_for_update(skip_locked=True, of=row)
            .lateral("taken")
        )
        found = sa.select(taken).select_from(plan.join(taken, sa.true())).cte("found")
    else:
        other = row.alias("other")
        first = (
            sa.select(other.c.id)
            .where(
                other.c.status == literal("pending"),
                sa.not_(other.c.parked),
                other.c.namespace == plan.c.namespace,
                other.c.visible_after <= now(),
                other.c.visible_after >= plan.c.since,
            )
            .order_by(other.c.visible_after, other.c.id)
            .limit(sa.bindparam("most", type_=sa.BigInteger()))
            .correlate(plan)
        )
        place = sa.func.row_number().over(partition_by=row.c.namespace, order_by=(row.c.visible_after, row.c.id))
        numbered = (
            sa.select(
                row.c.id,
                row.c.namespace,
                row.c.visible_after,
                _size(row).label("size"),
                plan.c.share,
                place.label("place"),
            )
            .select_from(plan.join(row, row.c.id.in_(first)))
            .subquery("numbered")
        )
        found = sa.select(numbered).where(numbered.c.place <= numbered.c.share).cte("found")
    turn = sa.func.row_number().over(partition_by=found.c.namespace, order_by=(found.c.visible_after, found.c.id))
    rounds = sa.select(found.c.id, found.c.visible_after, found.c.size, turn.label("turn")).subquery("rounds")
    return _take(tables, _within_bytes(rounds, rounds.c.turn, rounds.c.visible_after, rounds.c.id))


@statement
def next_due(tables: Tables) -> sa.Select[datetime, datetime]:
    """Seconds until the next pending row is due, NULL where there is none: the head of the due index."""
    row = tables.row
    first = sa.select(sa.func.min(row.c.visible_after)).where(due(tables)).scalar_subquery()
    return sa.select(sa.type_coerce(first, Instant()).label("due"), now().label("now"))


# -- the fenced writes of a relay ------------------------------------------------------------------------------------


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
    A row that was re-armed while the broker took its message is claimed again: the message is out.
    """
    row = tables.row
    claims = given(dialect, "claims", id=sa.BigInteger(), token=sa.Uuid(), to=sa.Text())
    locked = _locked(tables, dialect, claims, claims.c.to)
    lease = after(sa.bindparam("lease", type_=sa.Float()))
    return (
        sa.update(row)
        .where(row.c.id == locked.c.id)
        .values(
            status=literal("claimed"),
            parked=sa.false(),
            published_at=now(),
            published_to=locked.c.to,
            lease_until=sa.case((row.c.started_at.is_(None), lease), else_=row.c.lease_until),
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
    changes = {**cleared(), "status": literal("pending"), "visible_after": now()}
    return _fenced(tables, dialect, changes)


@statement
def postpone(tables: Tables, dialect: str) -> sa.Update:
    """Rows that the broker does not take wait; no attempt is spent, the reason is kept."""
    changes = {
        **cleared(),
        "status": literal("pending"),
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


# -- settle ----------------------------------------------------------------------------------------------------------

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


@statement
def settle_done(tables: Tables, dialect: str) -> sa.Update:
    """Rows whose task ran to its end, locked before by :func:`lock_states`."""
    row = tables.row
    ids = given(dialect, "ids", id=sa.BigInteger(), note=sa.Text())
    return (
        sa.update(row)
        .where(row.c.id == ids.c.id)
        .values(
            {
                **cleared(),
                **CALM,
                "status": literal("done"),
                "parked": sa.false(),
                "settled_at": now(),
                "error": ids.c.note,
            }
        )
    )


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
                **cleared(),
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
    """Cancelled rows that ran all the same: it is written down, and nothing else changes."""
    row = tables.row
    ids = given(dialect, "ids", id=sa.BigInteger(), note=sa.Text())
    before = sa.func.coalesce(row.c.error + sa.literal_column("'; '", sa.Text), sa.literal_column("''", sa.Text))
    return sa.update(row).where(row.c.id == ids.c.id).values(error=before + ids.c.note)


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
        changed = given(dialect, "message", id=sa.BigInteger(), **RETRIED)
        news: dict[str, Any] = {name: sa.func.coalesce(changed.c[name], row.c[name]) for name in RETRIED}
        return sa.update(row).where(row.c.id == changed.c.id).values(news)
    news = {
        name: sa.func.coalesce(sa.bindparam(f"message_{name}", type_=type_), row.c[name])
        for name, type_ in RETRIED.items()
    }
    return sa.update(row).where(row.c.id == sa.bindparam("message_id", type_=sa.BigInteger())).values(news)


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
