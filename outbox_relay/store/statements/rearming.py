"""Claimed rows whose lease is over, or whose queue is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import after, given, literal, now
from outbox_relay.store.statements.parts import WHERE_IT_RAN, cleared, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables

STALE_COLUMNS = (
    *("id", "claim_token", "claimed_at", "published_at", "published_to", "worker", "started_at", "vanished", "silent"),
)


@statement
def stale(tables: Tables, lock: bool) -> sa.Select[Any]:
    """Claimed rows whose lease is over, the oldest claims first, with the instant of the look and the oldest claim.

    ``since`` is a watermark: no claim is older, but for dead index entries. No index has ``lease_until``, which
    changes with every beacon; the index of the claimed rows is read instead. Rows that others have locked are left out.
    """
    row = tables.row
    claimed = (row.c.status == literal("claimed"), row.c.claimed_at >= sa.bindparam("since", type_=Instant()))
    query = (
        sa.select(*(row.c[name] for name in STALE_COLUMNS))
        .where(*claimed, row.c.lease_until < now())
        .order_by(row.c.claimed_at)
        .limit(sa.bindparam("limit", type_=sa.BigInteger()))
    )
    found = (query.with_for_update(skip_locked=True) if lock else query).cte("found")
    oldest = sa.select(sa.func.min(row.c.claimed_at)).where(*claimed).scalar_subquery()
    look = sa.select(now().label("now"), sa.type_coerce(oldest, Instant()).label("oldest")).subquery("look")
    return sa.select(look, found).select_from(look.outerjoin(found, sa.true()))


@statement
def orphans(tables: Tables, dialect: str) -> sa.Select[Any]:
    """Claimed rows that were published to a queue before an instant and that no live worker holds."""
    row = tables.row
    live = given(dialect, "live", worker=sa.Text())
    return (
        sa.select(*(row.c[name] for name in STALE_COLUMNS))
        .where(
            row.c.status == literal("claimed"),
            row.c.published_to == sa.bindparam("queue", type_=sa.Text()),
            row.c.published_at < sa.bindparam("before", type_=Instant()),
            sa.or_(row.c.worker.is_(None), row.c.worker.not_in(sa.select(live.c.worker))),
        )
        .order_by(row.c.claimed_at)
        .limit(sa.bindparam("limit", type_=sa.BigInteger()))
        .with_for_update(skip_locked=True)
    )


@statement
def published_at(tables: Tables) -> sa.Select[Any]:
    """When a delivery was published; nothing where it is not the row's last one."""
    row = tables.row
    same = (
        row.c.id == sa.bindparam("id", type_=sa.BigInteger()),
        row.c.claim_token == sa.bindparam("token", type_=sa.Uuid()),
    )
    return sa.select(row.c.published_at).where(*same)


ROWS_IN_FLIGHT = 20_000


@statement
def queues_in_flight(tables: Tables) -> sa.Select[Any]:
    """The queues of published rows on which no worker has reported yet; of very many, the oldest claims'."""
    row = tables.row
    waiting = (
        sa.select(row.c.published_to)
        .where(
            row.c.status == literal("claimed"),
            row.c.claimed_at >= sa.bindparam("since", type_=Instant()),
            row.c.published_to.is_not(None),
            row.c.worker.is_(None),
        )
        .order_by(row.c.claimed_at)
        .limit(sa.literal_column(str(ROWS_IN_FLIGHT)))
        .subquery("waiting")
    )
    return sa.select(waiting.c.published_to).distinct().limit(sa.bindparam("limit", type_=sa.BigInteger()))


@statement
def rearm(tables: Tables, dialect: str) -> sa.Update:
    """Back to pending, due now. The token stays until the next claim: a report of the lost delivery still counts."""
    row = tables.row
    judged = given(dialect, "judged", id=sa.BigInteger(), vanished=sa.BigInteger(), silent=sa.BigInteger())
    return (
        sa.update(row)
        .where(row.c.id == judged.c.id)
        .values(
            status=literal("pending"),
            visible_after=now(),
            lease_until=sa.null(),
            rearms=row.c.rearms + sa.literal_column("1", sa.Integer),
            vanished=judged.c.vanished,
            silent=judged.c.silent,
        )
    )


@statement
def fail(tables: Tables, dialect: str) -> sa.Update:
    """Rows that vanished with their workers, or that nobody reports on: dead letters."""
    row = tables.row
    judged = given(
        dialect, "judged", id=sa.BigInteger(), vanished=sa.BigInteger(), silent=sa.BigInteger(), error=sa.Text()
    )
    changes = {name: judged.c[name] for name in ("vanished", "silent", "error")}
    ended = {"status": literal("failed"), "settled_at": now()}
    return sa.update(row).where(row.c.id == judged.c.id).values({**cleared(but=WHERE_IT_RAN), **changes, **ended})


@statement
def extend(tables: Tables, dialect: str) -> sa.Update:
    """Nothing is known against them: their lease goes on."""
    row = tables.row
    judged = given(dialect, "judged", id=sa.BigInteger(), lease=sa.Float())
    return sa.update(row).where(row.c.id == judged.c.id).values(lease_until=after(judged.c.lease))
