"""Rows that a hold or their placement keeps back: they leave the due indexes, and come back into them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.store.statements import parking

if TYPE_CHECKING:
    import sqlalchemy as sa

    from outbox_relay.core.namespaces import Scope
    from outbox_relay.store.engine import Database

BATCH = 5_000


def unpark(connection: sa.Connection, database: Database, scope: Scope, value: str, limit: int = BATCH) -> int:
    """Put at most ``limit`` rows back that a hold on ``value`` may have kept; returns how many they were.

    The hold is to be deleted before, in this transaction or in one that has committed: who parks rows reads the holds
    FOR SHARE, so that the deletion waits for it and nothing is left behind. Call again, each time in a transaction
    of its own, until less than ``limit`` come back. Other reasons to keep a row back are looked at again by the next
    claim.
    """
    parameters = {"value": value, "limit": limit}
    return int(connection.execute(parking.unpark(database.tables, database.dialect, scope), parameters).rowcount)
