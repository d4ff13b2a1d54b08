"""Rows that plain SQL inserted, and the messages that become of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.store.sql import values
from outbox_relay.store.statements import plain as statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_relay.core.row import Claim, Message
    from outbox_relay.store.engine import Database

Arguments = tuple["str | None", "str | None"]


class PlainRows:
    """Rows without a message. A relay makes it once, and writes it down before it is published."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def arguments(self, ids: Sequence[int]) -> dict[int, Arguments]:
        """Return the JSON texts of ``args`` and ``kwargs`` by row id."""
        statement = statements.arguments(self._db.tables, self._db.dialect)
        with self._db.begin(reads=True) as connection:
            found = connection.execute(statement, values(self._db.dialect, "ids", id=ids))
            return {row.id: (row.args, row.kwargs) for row in found}

    def write(self, made: Sequence[tuple[Claim, Message]]) -> None:
        """Keep the messages of claimed rows. A claim that is over keeps its row as it is."""
        if not made:
            return
        parameters = [
            {
                "row_id": claim.row_id,
                "token": claim.token,
                **{f"message_{name}": getattr(message, name) for name in statements.MESSAGE},
            }
            for claim, message in made
        ]
        with self._db.begin() as connection:
            connection.execute(statements.write_message(self._db.tables), parameters)
