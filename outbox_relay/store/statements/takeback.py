"""Where claimed rows are, and whose messages are these: what taking back messages needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.sql import given, literal
from outbox_relay.store.statements.parts import statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables


@statement
def whereabouts(tables: Tables, dialect: str) -> sa.Select[Any]:
    """Where the claimed rows of some namespaces, or in some queues, are, and who holds them: each place once.

    A scan of the index of claimed rows: asked only while something may be in a wrong place.
    """
    row = tables.row
    namespaces = given(dialect, "placed", value=sa.Text())
    queues = given(dialect, "queues", value=sa.Text())
    places = (row.c.namespace, row.c.task_queue, row.c.node, row.c.published_to, row.c.worker)
    return (
        sa.select(*places)
        .where(
            row.c.status == literal("claimed"),
            row.c.published_to.is_not(None),
            sa.or_(
                row.c.namespace.in_(sa.select(namespaces.c.value)),
                row.c.published_to.in_(sa.select(queues.c.value)),
            ),
        )
        .distinct()
    )


@statement
def addressees(tables: Tables, dialect: str) -> sa.Select[Any]:
    """The rows of some messages: where each may go, who holds it, its state, and the token of its last claim."""
    row = tables.row
    asked = given(dialect, "asked", id=sa.BigInteger())
    columns = (row.c.id, row.c.namespace, row.c.task_queue, row.c.node, row.c.claim_token, row.c.worker, row.c.status)
    return sa.select(*columns).select_from(row.join(asked, row.c.id == asked.c.id))
