"""The rows that one open transaction sees, taken and settled inside it: nothing is committed, nothing begun."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outbox_relay.store.claimed import batch
from outbox_relay.store.engine import Database
from outbox_relay.store.plain import PlainRows
from outbox_relay.store.settling import Rules, Settling
from outbox_relay.store.statements import inprocess as statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from outbox_relay.core.row import ClaimedRow
    from outbox_relay.core.settlement import Policy, Settlement
    from outbox_relay.store.raw import Connection
    from outbox_relay.store.schema import Tables
    from outbox_relay.store.settling import Settled


class Joined(Database):
    """A database whose every transaction is the one that is open on a connection already."""

    def __init__(self, connection: Connection, tables: Tables) -> None:
        self.tables = tables
        self.dialect = connection.dialect.name
        self._connection: Any = connection

    @contextmanager
    def begin(self, *, reads: bool = False) -> Iterator[Any]:
        yield self._connection


class InProcess:
    """What a test does to the rows that it has staged."""

    def __init__(self, connection: Connection, tables: Tables) -> None:
        self._connection = connection
        self._tables = tables
        joined = Joined(connection, tables)
        self._settling = Settling(joined)
        self.plain = PlainRows(joined)

    def staged(self) -> Sequence[Any]:
        """Every row, in the order of staging."""
        return self._connection.execute(statements.staged(self._tables)).mappings().all()

    def take(self, *, delayed: bool, lease: timedelta) -> ClaimedRow | None:
        """Claim the next row that is due (``delayed``: the next one at all); None where there is none."""
        found = self._connection.execute(statements.next_row(self._tables, delayed)).scalar()
        if found is None:
            return None
        parameters = {"taken": found, "lease": lease.total_seconds()}
        rows = self._connection.execute(statements.take_row(self._tables), parameters).all()
        return next(iter(batch(rows, more=False)), None)

    def settle(self, settlement: Settlement, policy: Policy, queue_lease: timedelta) -> Settled:
        """Apply the outcome of a row that was taken, by the rules of a relay."""
        return self._settling.settle([settlement], Rules(policy, None, queue_lease))
