"""Settlements applied to their rows: read under lock, decided by the core, written back in few statements."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from outbox_relay.core.lifecycle import Event, Status
from outbox_relay.core.row import RowState
from outbox_relay.core.settlement import Kind, Stale, decide, storable
from outbox_relay.core.wire import Reporter, encode_settlements
from outbox_relay.store.driver import fetch
from outbox_relay.store.sql import POSTGRESQL, values
from outbox_relay.store.statements import settling as statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

    import sqlalchemy as sa

    from outbox_relay.core.settlement import Policy, Settlement, Verdict
    from outbox_relay.store.engine import Database

MAX_ID = 2**63 - 1


@dataclass(slots=True)
class Settled:
    """What became of a batch of settlements; ``aside`` counts those that the database refused."""

    verdicts: list[Verdict] = field(default_factory=list)
    stale: list[Stale] = field(default_factory=list)
    aside: int = 0

    def add(self, other: Settled) -> None:
        self.verdicts += other.verdicts
        self.stale += other.stale
        self.aside += other.aside


@dataclass(frozen=True, slots=True)
class Rules:
    """What a batch of settlements is applied by."""

    policy: Policy
    message_life: timedelta | None
    queue_lease: timedelta


class Settling:
    """What the settlement loop does to rows."""

    def __init__(self, database: Database, *, draw: Callable[[], float] = random.random) -> None:
        self._db = database
        self._draw = draw

    def settle(self, settlements: Sequence[Settlement], rules: Rules) -> Settled:
        """Apply settlements in one transaction; where the database refuses one, find it by halves and set it aside."""
        if not settlements:
            return Settled()
        try:
            settled = Settled()
            with self._db.begin() as connection:
                for round_ in _rounds(settlements):
                    settled.add(self._apply(connection, round_, rules))
        except (StatementError, ValueError, OverflowError) as error:
            if not _is_refusal(error):
                raise
            if len(settlements) == 1:
                self._refused(settlements[0], error)
                return Settled(aside=1)
            middle = len(settlements) // 2
            settled = self.settle(settlements[:middle], rules)
            settled.add(self.settle(settlements[middle:], rules))
        return settled

    def _apply(self, connection: sa.Connection, settlements: Sequence[Settlement], rules: Rules) -> Settled:
        """Apply settlements of different rows."""
        states, written = self._lock(connection, settlements, rules.message_life)
        settled = Settled()
        for one in settlements:
            outcome = decide(one, states.get(one.delivery.row_id), rules.policy, self._draw())
            if isinstance(outcome, Stale):
                settled.stale.append(outcome)
            else:
                settled.verdicts.append(outcome)
        left = [one for one in settled.verdicts if one.row_id not in written or one.event is not Event.DONE]
        if len(left) + len(written) != len(settled.verdicts):
            raise RuntimeError("rows were settled in another way than was decided")
        self._write(connection, left, rules)
        return settled

    def _lock(
        self, connection: sa.Connection, settlements: Sequence[Settlement], life: timedelta | None
    ) -> tuple[dict[int, RowState], set[int]]:
        """Lock rows and read their states; return also the ids of those that were settled by that, because it could."""
        parameters = {"life": 0.0 if life is None else life.total_seconds()}
        columns: dict[str, list[Any]] = {"id": [one.delivery.row_id for one in settlements]}
        at_once = self._db.dialect == POSTGRESQL
        if at_once:
            done = [one.kind is Kind.DONE and _is_plain(one) for one in settlements]
            columns["done_as"] = [one.task_id if yes else None for one, yes in zip(settlements, done, strict=True)]
            columns["note"] = [one.error if yes else None for one, yes in zip(settlements, done, strict=True)]
            statement = statements.lock_and_settle_done(self._db.tables)
        else:
            statement = statements.lock_states(self._db.tables, self._db.dialect)
        states: dict[int, RowState] = {}
        written: set[int] = set()
        for row in fetch(connection, statement, {**parameters, **values(self._db.dialect, "ids", **columns)}):
            id_, task_id, status, token, attempt, failures, retries, max_attempts, over = tuple(row)[:9]
            states[id_] = RowState(
                id=id_,
                task_id=task_id,
                status=_STATUSES[status],
                token=token,
                attempt=attempt,
                failures=failures,
                retries=retries,
                max_attempts=max_attempts,
                message_over=bool(over) and life is not None,
            )
            if at_once and row.settled:
                written.add(id_)
        return states, written

    def _write(self, connection: sa.Connection, verdicts: Sequence[Verdict], rules: Rules) -> None:
        """Write verdicts back, one statement for each kind that occurs."""
        groups: dict[Any, list[Verdict]] = {}
        for verdict in verdicts:
            groups.setdefault(_statement_for(verdict), []).append(verdict)
        for statement, group in groups.items():
            connection.execute(statement(self._db.tables, self._db.dialect), self._parameters(statement, group, rules))
        self._change_messages(connection, [one for one in verdicts if one.retried is not None])

    def _parameters(self, statement: Any, verdicts: Sequence[Verdict], rules: Rules) -> dict[str, Any]:
        dialect, ids = self._db.dialect, [one.row_id for one in verdicts]
        if statement in (statements.settle_done, statements.note_ran):
            return values(dialect, "ids", id=ids, note=[one.error for one in verdicts])
        if statement is statements.settle_returned:
            lease = {"lease": rules.queue_lease.total_seconds(), "from_publish": rules.message_life is not None}
            return {**values(dialect, "ids", id=ids), **lease}
        columns = {
            name: [getattr(one, name) for one in verdicts] for name in ("attempt", "failures", "retries", "error")
        }
        delays = [one.delay.total_seconds() for one in verdicts]
        return values(dialect, "moved", id=ids, **columns, delay=delays)

    def _change_messages(self, connection: sa.Connection, verdicts: Sequence[Verdict]) -> None:
        changed = [
            {
                "id": one.row_id,
                **{name: getattr(one.retried, name) for name in statements.RETRIED},
                "expires_at": None if one.retried is None else _expires_at(one.retried.headers),
            }
            for one in verdicts
            if any(getattr(one.retried, name) is not None for name in statements.RETRIED)
        ]
        if not changed:
            return
        statement = statements.change_messages(self._db.tables, self._db.dialect)
        if self._db.dialect == POSTGRESQL:
            columns = {name: [one[name] for one in changed] for name in changed[0]}
            connection.execute(statement, values(self._db.dialect, "message", **columns))
        else:
            connection.execute(statement, [{f"message_{name}": one[name] for name in one} for one in changed])

    def _refused(self, settlement: Settlement, error: Exception) -> None:
        row_id = settlement.delivery.row_id
        self.set_aside(
            encode_settlements(Reporter(UUID(int=0), ""), [settlement]),
            str(getattr(error, "orig", None) or error),
            row_id=row_id if abs(row_id) <= MAX_ID else None,
            kind=settlement.kind.value,
        )

    def set_aside(self, body: bytes, reason: str, *, row_id: int | None = None, kind: str | None = None) -> None:
        kept = {"row_id": row_id, "kind": kind, "body": body, "reason": storable(reason, 1_000)}
        with self._db.begin() as connection:
            connection.execute(statements.set_aside(self._db.tables), kept)


def _expires_at(headers: bytes | None) -> datetime | None:
    """Read ``expires`` in a message's headers: ISO text, which Celery takes for UTC where it names no zone."""
    text = None if headers is None else json.loads(headers).get("expires")
    if not isinstance(text, str):
        return None
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=timezone.utc)


def _rounds(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """Split a batch so that no round names a row twice, and the reports of one row keep their order."""
    rounds: list[list[Settlement]] = []
    seen: dict[int, int] = {}
    for one in settlements:
        at = seen.get(one.delivery.row_id, 0)
        seen[one.delivery.row_id] = at + 1
        if at == len(rounds):
            rounds.append([])
        rounds[at].append(one)
    return iter(rounds)


_STATEMENTS = {
    None: statements.note_ran,
    Event.DONE: statements.settle_done,
    Event.RETURNED: statements.settle_returned,
    Event.CANCELLED: statements.settle_cancelled,
    Event.FAILED: statements.settle_failed,
    Event.EXHAUSTED: statements.settle_failed,
    Event.AGAIN: statements.settle_again,
    Event.RETRY: statements.settle_again,
    Event.EXPIRED_RETURN: statements.settle_again,
}


_STATUSES = {status.value: status for status in Status}


def _is_plain(settlement: Settlement) -> bool:
    """Whether its texts are such as every database takes: what workers send is not always what they should."""
    text = settlement.task_id + (settlement.error or "")
    return text.isascii() and "\0" not in text


def _statement_for(verdict: Verdict) -> Any:
    return _STATEMENTS[verdict.event]


def _is_refusal(error: Exception) -> bool:
    """Whether the database (or its driver) refuses the values, rather than being away or broken."""
    if isinstance(error, DBAPIError):
        return isinstance(error, (DataError, IntegrityError)) and not error.connection_invalidated
    return True
