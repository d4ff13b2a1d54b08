"""What several statements are made of."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.sql import literal

if TYPE_CHECKING:
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

WHERE_IT_RAN = ("published_at", "published_to", "started_at", "worker")
"""What a row that has failed keeps, for whoever asks where that was; a redrive clears it."""

CALM: dict[str, Any] = {"vanished": sa.literal_column("0"), "silent": sa.literal_column("0")}
"""What a worker's report resets: the row neither vanished nor is its queue silent."""


def number(value: int) -> sa.ColumnElement[int]:
    return sa.literal_column(str(value), sa.BigInteger())


def cleared(*, but: tuple[str, ...] = ()) -> dict[str, Any]:
    return {name: sa.null() for name in CLEARED if name not in but}


def due(tables: Tables) -> sa.ColumnElement[bool]:
    """The predicate of the due indexes, word for word."""
    row = tables.row
    return sa.and_(row.c.status == literal("pending"), sa.not_(row.c.parked))
