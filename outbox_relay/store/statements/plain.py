"""Rows that plain SQL inserted: read their arguments, and write down the message that became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.sql import given
from outbox_relay.store.statements.parts import statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables

MESSAGE: dict[str, sa.types.TypeEngine[Any]] = {
    "task_queue": sa.Text(),
    "exchange": sa.Text(),
    "routing_key": sa.Text(),
    "body": sa.LargeBinary(),
    "content_type": sa.Text(),
    "content_encoding": sa.Text(),
    "headers": sa.LargeBinary(),
    "properties": sa.LargeBinary(),
}


@statement
def arguments(tables: Tables, dialect: str) -> sa.Select[Any]:
    """What plain SQL left for the relay to read. Not a part of the claim: few rows have any, and version 1 has none."""
    row, wanted = tables.row, given(dialect, "ids", id=sa.BigInteger())
    return sa.select(row.c.id, row.c.args, row.c.kwargs).select_from(row.join(wanted, row.c.id == wanted.c.id))


@statement
def write_message(tables: Tables) -> sa.Update:
    """Keep the message that was made of a claimed row's arguments: from now on it is a row like any other."""
    row = tables.row
    made = {name: sa.bindparam(f"message_{name}", type_=type_) for name, type_ in MESSAGE.items()}
    return (
        sa.update(row)
        .where(
            row.c.id == sa.bindparam("row_id", type_=sa.BigInteger()),
            row.c.claim_token == sa.bindparam("token", type_=sa.Uuid()),
        )
        .values(**made, args=sa.null(), kwargs=sa.null())
    )
