"""What beacons and relays tell of themselves, and what becomes of claims that nobody keeps alive."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from outbox_relay.core.beacon import HeldState
from outbox_relay.core.leases import InFlight, Judgement, Renewal, StaleRow, renewal
from outbox_relay.core.lifecycle import Event
from outbox_relay.core.planning import Watermark
from outbox_relay.core.processes import RelayInfo, WorkerInfo
from outbox_relay.store.sql import POSTGRESQL, values
from outbox_relay.store.statements import rearming, register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    import sqlalchemy as sa

    from outbox_relay.core.beacon import Beacon
    from outbox_relay.store.engine import Database

ALL = "all"
FOREVER = datetime(9999, 1, 1, tzinfo=timezone.utc)


class Register:
    """The relays and workers of an outbox."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def beacon(self, beacon: Beacon, *, run_lease: timedelta, message_expires: bool) -> int:
        parameters = {
            "instance": beacon.instance,
            "hostname": beacon.hostname,
            "pool": beacon.pool,
            "node": beacon.node,
            "namespaces": ALL if beacon.namespaces is None else json.dumps(beacon.namespaces),
            "queues": json.dumps(beacon.queues),
            "held": None if beacon.partial else len(beacon.held),
            "age": beacon.age,
        }
        with self._db.begin() as connection:
            connection.execute(register.sign_worker(self._db.tables, self._db.dialect), parameters)
            return self._hold(connection, beacon, run_lease, message_expires=message_expires)

    def _hold(self, connection: sa.Connection, beacon: Beacon, run_lease: timedelta, *, message_expires: bool) -> int:
        if not beacon.held:
            return 0
        held = list({one.row_id: one for one in beacon.held}.values())
        renewals = [renewal(one.state, message_expires=message_expires) for one in held]
        parameters = values(
            self._db.dialect,
            "held",
            id=[one.row_id for one in held],
            token=[one.token for one in held],
            exact=[int(one is Renewal.EXACTLY) for one in renewals],
            running=[int(one.state is not HeldState.RESERVED) for one in held],
            age=[one.age for one in held],
        )
        parameters |= {"worker": str(beacon.instance), "run_lease": run_lease.total_seconds()}
        return int(connection.execute(register.hold(self._db.tables, self._db.dialect), parameters).rowcount)

    def workers(self, ttl: timedelta) -> list[WorkerInfo]:
        with self._db.begin(reads=True) as connection:
            found = connection.execute(register.workers(self._db.tables), {"ttl": ttl.total_seconds()}).mappings()
            return [_worker(one) for one in found]

    def relay_seen(
        self, instance: UUID, hostname: str, loops: str, live_for: timedelta, *, applied: datetime | None
    ) -> None:
        parameters = {
            "instance": instance,
            "hostname": hostname,
            "loops": loops,
            "live_for": live_for.total_seconds(),
            "applied_at": applied,
        }
        with self._db.begin() as connection:
            connection.execute(register.sign_relay(self._db.tables, self._db.dialect), parameters)

    def marker_back(self, owner: UUID, marker: UUID) -> None:
        with self._db.begin() as connection:
            connection.execute(register.marker_back(self._db.tables), {"owner": owner, "id": marker})

    def relay_gone(self, instance: UUID) -> None:
        with self._db.begin() as connection:
            connection.execute(register.forget_relay(self._db.tables), {"instance": instance})

    def worker_gone(self, instance: UUID) -> None:
        with self._db.begin() as connection:
            connection.execute(register.forget_worker(self._db.tables), {"instance": instance})

    def relays(self) -> list[RelayInfo]:
        with self._db.begin(reads=True) as connection:
            found = connection.execute(register.relays(self._db.tables)).mappings()
            return [RelayInfo(**{**one, "live": bool(one["live"])}) for one in found]

    def forget(self, age: timedelta) -> int:
        with self._db.begin() as connection:
            seconds = {"age": age.total_seconds()}
            gone = (
                connection.execute(register.forget_processes(self._db.tables, which), seconds)
                for which in ("relay", "worker")
            )
            return sum(int(one.rowcount) for one in gone)


def _worker(row: Any) -> WorkerInfo:
    namespaces = None if row["namespaces"] == ALL else tuple(json.loads(row["namespaces"]))
    fields = {**row, "namespaces": namespaces, "queues": tuple(json.loads(row["queues"])), "live": bool(row["live"])}
    return WorkerInfo(**fields)


class Rearming:
    """Claims that nobody keeps alive: found, judged by the caller, written back; all under the rows' locks."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._watermark = Watermark()

    def in_flight(self) -> InFlight:
        with self._db.begin(reads=True) as connection:
            first = self._look(connection, 1, lock=False)[0]
        return InFlight(first["oldest"] is not None, first["id"] is not None)

    def stale(self, limit: int) -> list[StaleRow]:
        with self._db.begin(reads=True) as connection:
            return self._find(connection, limit, lock=False)

    def rearm(self, judge: Callable[[StaleRow], Judgement], *, limit: int) -> list[Judgement]:
        with self._db.begin() as connection:
            judgements = [judge(row) for row in self._find(connection, limit, lock=True)]
            self._write(connection, judgements)
        return judgements

    def rearm_queue(
        self,
        judge: Callable[[StaleRow], Judgement],
        *,
        queue: str,
        before: datetime | None,
        live: Sequence[UUID],
        limit: int,
    ) -> list[Judgement]:
        parameters = values(self._db.dialect, "live", worker=[str(one) for one in live])
        parameters |= {"queue": queue, "before": before or FOREVER, "limit": limit}
        with self._db.begin() as connection:
            orphans = rearming.orphans(self._db.tables, self._db.dialect)
            judgements = [judge(_stale(row)) for row in connection.execute(orphans, parameters).mappings()]
            self._write(connection, judgements)
        return judgements

    def queues_in_flight(self, limit: int) -> list[str]:
        parameters = {"limit": limit, "since": self._watermark.floor}
        with self._db.begin(reads=True) as connection:
            found = connection.execute(rearming.queues_in_flight(self._db.tables), parameters).scalars()
            return [str(one) for one in found]

    def published_at(self, row_id: int, token: UUID) -> datetime | None:
        with self._db.begin(reads=True) as connection:
            statement = rearming.published_at(self._db.tables)
            found: datetime | None = connection.execute(statement, {"id": row_id, "token": token}).scalar()
            return found

    def _find(self, connection: sa.Connection, limit: int, *, lock: bool) -> list[StaleRow]:
        return [_stale(one) for one in self._look(connection, limit, lock=lock) if one["id"] is not None]

    def _look(self, connection: sa.Connection, limit: int, *, lock: bool) -> Sequence[Any]:
        begun = time.monotonic()
        full = self._watermark.begin(begun)
        parameters = {"limit": limit, "since": self._watermark.floor}
        statement = rearming.stale(self._db.tables, lock and self._db.dialect == POSTGRESQL)
        found = connection.execute(statement, parameters).mappings().all()
        oldest, now = found[0]["oldest"], found[0]["now"]
        self._watermark.looked(now if oldest is None else min(oldest, now), {})
        if full:
            self._watermark.full_look_took(begun, time.monotonic())
        return found

    def _write(self, connection: sa.Connection, judgements: Sequence[Judgement]) -> None:
        rearmed = [one for one in judgements if one.event is Event.REARM]
        failed = [one for one in judgements if one.event is not None and one.event is not Event.REARM]
        longer = [one for one in judgements if one.event is None and one.lease is not None]
        if rearmed:
            self._execute(connection, rearming.rearm, rearmed, vanished="vanished", silent="silent")
        if failed:
            self._execute(connection, rearming.fail, failed, vanished="vanished", silent="silent", error="error")
        if longer:
            leases = [one.lease.total_seconds() for one in longer if one.lease is not None]
            parameters = values(self._db.dialect, "judged", id=[one.row_id for one in longer], lease=leases)
            connection.execute(rearming.extend(self._db.tables, self._db.dialect), parameters)

    def _execute(
        self, connection: sa.Connection, statement: Any, judgements: Sequence[Judgement], **columns: str
    ) -> None:
        taken = {name: [getattr(one, name) for one in judgements] for name in columns}
        parameters = values(self._db.dialect, "judged", id=[one.row_id for one in judgements], **taken)
        connection.execute(statement(self._db.tables, self._db.dialect), parameters)


def _stale(row: Any) -> StaleRow:
    return StaleRow(
        id=row["id"],
        token=row["claim_token"],
        claimed_at=row["claimed_at"],
        published_at=row["published_at"],
        queue=row["published_to"],
        worker=row["worker"],
        started_at=row["started_at"],
        vanished=row["vanished"],
        silent=row["silent"],
    )
