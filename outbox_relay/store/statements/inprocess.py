"""Look at rows and take them one by one, in a transaction of the caller's: what tests of a shop do in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.sql import after, clock, literal, new_token, now
from outbox_relay.store.statements.claiming import CLAIMED_COLUMNS
from outbox_relay.store.statements.parts import cleared, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables

STAGED_COLUMNS = (
    *("id", "namespace", "dispatch_key", "workflow_id", "run_id", "ordinal", "task_queue", "node", "task", "task_id"),
    *("body", "content_type", "content_encoding", "headers", "properties", "status", "attempt", "visible_after"),
    *("args", "kwargs"),
)


@statement
def staged(tables: Tables) -> sa.Select[Any]:
    """Every row that the transaction sees, in the order of staging."""
    row = tables.row
    return sa.select(*(row.c[name] for name in STAGED_COLUMNS)).order_by(row.c.id)


@statement
def next_row(tables: Tables, delayed: bool) -> sa.Select[Any]:
    """The id of the next row to run. Instants are compared with the clock: the transaction may be older than a row."""
    row = tables.row
    found = sa.select(row.c.id).where(row.c.status == literal("pending"), sa.not_(row.c.parked))
    if not delayed:
        found = found.where(row.c.visible_after <= clock())
    return found.order_by(row.c.visible_after, row.c.id).limit(1)


@statement
def take_row(tables: Tables) -> sa.Update:
    """Claim one row, as a relay does."""
    row = tables.row
    claimed = {
        **cleared(),
        "status": literal("claimed"),
        "claim_token": new_token(),
        "claimed_at": now(),
        "lease_until": after(sa.bindparam("lease", type_=sa.Float())),
    }
    return (
        sa.update(row)
        .where(row.c.id == sa.bindparam("taken", type_=sa.BigInteger()), row.c.status == literal("pending"))
        .values(claimed)
        .returning(
            *(row.c[name] for name in CLAIMED_COLUMNS),
            sa.func.coalesce(row.c.expires_at <= clock(), sa.false()).label("expired"),
        )
    )
