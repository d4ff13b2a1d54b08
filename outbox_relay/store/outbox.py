"""The store: everything that a relay and an operator do to the outbox's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.core.row import RowFilter
from outbox_relay.store import meta
from outbox_relay.store.claims import USUAL, Claims
from outbox_relay.store.directives import Terms
from outbox_relay.store.engine import Database, open_engine
from outbox_relay.store.governing import Governing
from outbox_relay.store.operator import Operator
from outbox_relay.store.plain import PlainRows
from outbox_relay.store.reach import may_come_back
from outbox_relay.store.register import Rearming, Register
from outbox_relay.store.schema import Tables, build
from outbox_relay.store.settling import Rules, Settled, Settling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    import sqlalchemy as sa

    from outbox_relay.core.beacon import Beacon
    from outbox_relay.core.directives import Directives
    from outbox_relay.core.leases import InFlight, Judgement, StaleRow
    from outbox_relay.core.processes import RelayInfo, WorkerInfo
    from outbox_relay.core.row import Batch, Cancelled, Claim, Published, RowDetail
    from outbox_relay.core.settlement import Delivery, Policy, Settlement
    from outbox_relay.errors import StoreAway
    from outbox_relay.settings import Settings


class Store:
    """One outbox in one database. Its methods may be called from any thread, but only one thread claims.

    Every method is a transaction of its own and raises :class:`outbox_relay.errors.StoreAway` when the database is
    away: nothing has happened then, or (where the connection broke at the commit) all of it; it may be called again.
    """

    def __init__(self, engine: sa.Engine, tables: Tables, *, terms: Terms = USUAL) -> None:
        self.engine = engine
        self.tables = tables
        self._db = Database(engine, tables)
        self._claims = Claims(self._db, terms=terms)
        self._settling = Settling(self._db)
        self._rearming = Rearming(self._db)
        self._register = Register(self._db)
        self._operator = Operator(self._db)
        self.governing = Governing(self._db, terms.rearm_interval)
        self.plain = PlainRows(self._db)

    @classmethod
    def open(cls, settings: Settings) -> Store:
        """Open the database that the settings name; it is reached at the first use."""
        engine, tables = open_engine(settings.database_url), build(settings.table_prefix, settings.schema)
        return cls(engine, tables, terms=Terms.of(settings))

    def close(self) -> None:
        self.engine.dispose()

    # -- the schema --------------------------------------------------------------------------------------------------

    def check_schema(self) -> int:
        """Return the version of the tables.

        Raises:
            StoreError: there are none, or they are more than one version older or newer than this code.
        """
        return meta.check_schema(self._db)

    def may_come_back(self, error: StoreAway) -> bool:
        """Tell whether waiting may help; see :func:`outbox_relay.store.reach.may_come_back`."""
        return may_come_back(self.engine, error)

    def migrate(self) -> None:
        """Bring the tables to this version; see :func:`outbox_relay.store.migrate.migrate`."""
        from outbox_relay.store.migrate import migrate  # noqa: PLC0415 - alembic is for this alone

        migrate(self.engine, self.tables.prefix, self.tables.metadata.schema)

    def outbox_id(self) -> UUID:
        """The outbox's own id, made by the first migration."""
        return meta.outbox_id(self._db)

    # -- the sweep ---------------------------------------------------------------------------------------------------

    def claim(self, *, limit: int, claimed_by: UUID, lease: timedelta) -> Batch:
        """Claim up to ``limit`` due rows, fairly between namespaces, for ``lease``; oldest first."""
        batch = self._claims.claim(limit=limit, claimed_by=claimed_by, lease=lease)
        if batch:
            self.governing.met({row.namespace for row in batch})
        return batch

    def tidy(self, budget: timedelta) -> bool:
        """Take due rows that are kept back (held, or waiting for a node) out of the way of claims, for a ``budget``.

        Those that nothing keeps back any more come in again. No claim takes a row that is kept back, tidied away or
        not. Returns whether there is more to do. Of the thread that claims.
        """
        return self._claims.tidy(budget)

    def look_around(self) -> None:
        """Note which workers live: to be called before this relay reads beacons, which tell of some before others."""
        self._claims.look_around()

    def directives(self) -> Directives:
        """What is said about namespaces, workflows and tasks. Of the thread that claims."""
        return self._claims.directives()

    @property
    def at_quota(self) -> frozenset[str]:
        """The namespaces of which the last claim found, or left, as many rows in flight as they may have."""
        return self._claims.at_quota

    def reset_watermark(self) -> None:
        """Let the next claim look at every due row, however old."""
        self._claims.reset_watermark()

    def mark_published(self, published: Sequence[Published], *, queue_lease: timedelta) -> int:
        """The broker has confirmed the messages. Returns how many rows still had their claim.

        The others were settled already (a quick worker), or their claim was over.
        """
        return self._claims.mark_published(published, queue_lease=queue_lease)

    def release(self, claims: Sequence[Claim]) -> int:
        """Give back claims whose messages were surely not sent: due again at once. Returns how many were."""
        return self._claims.release(claims)

    def postpone(self, claims: Sequence[Claim], delay: timedelta, reason: str) -> int:
        """Rows that the broker does not take wait for ``delay`` and spend no attempt. Returns how many do."""
        return self._claims.postpone(claims, delay, reason)

    def fail_unsendable(self, failures: Sequence[tuple[Claim, str]]) -> int:
        """Rows that can never be sent fail, each with its reason. Returns how many did."""
        return self._claims.fail_unsendable(failures)

    def expire(self, claims: Sequence[Claim]) -> int:
        """Rows whose own ``expires`` has passed are cancelled. Returns how many were."""
        return self._claims.expire(claims)

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(
        self,
        settlements: Sequence[Settlement],
        policy: Policy,
        *,
        message_life: timedelta | None,
        queue_lease: timedelta,
    ) -> Settled:
        """Apply what workers report, in one transaction; reports of one row in their order.

        ``message_life`` is how long a message lives on the broker, None where it lives for ever. A report that the
        database refuses is set aside, the rest is applied all the same.
        """
        return self._settling.settle(settlements, Rules(policy, message_life, queue_lease))

    def set_aside(self, body: bytes, reason: str) -> None:
        """Keep a report that cannot be read, with the reason."""
        self._settling.set_aside(body, reason)

    # -- signs of life, and of the lack of it ------------------------------------------------------------------------

    def beacon(self, beacon: Beacon, *, run_lease: timedelta, message_expires: bool) -> int:
        """Note a worker's sign of life and renew the leases of the rows that it holds. Returns how many those are.

        A row that was re-armed meanwhile is claimed again, as long as its token is the last one.
        """
        return self._register.beacon(beacon, run_lease=run_lease, message_expires=message_expires)

    def in_flight(self) -> InFlight:
        """Look, before anything else is asked, whether there are claimed rows, and such whose lease is over."""
        return self._rearming.in_flight()

    def stale(self, limit: int) -> list[StaleRow]:
        """Claimed rows whose lease is over, to look at before :meth:`rearm` judges them; nothing is locked."""
        return self._rearming.stale(limit)

    def published_at(self, delivery: Delivery) -> datetime | None:
        """When a delivery was published; None where it is not its row's last one, or not marked yet."""
        return self._rearming.published_at(delivery.row_id, delivery.token)

    def queues_in_flight(self, limit: int) -> list[str]:
        """The queues, ``limit`` at most, of published rows on which no worker has reported yet."""
        return self._rearming.queues_in_flight(limit)

    def rearm(self, judge: Callable[[StaleRow], Judgement], *, limit: int) -> list[Judgement]:
        """Let ``judge`` say what becomes of claimed rows whose lease is over; it is called with the rows locked.

        Rows that others have locked are left for the next time. Returns the judgements, which have been written.
        """
        return self._rearming.rearm(judge, limit=limit)

    def rearm_queue(
        self,
        judge: Callable[[StaleRow], Judgement],
        *,
        queue: str,
        before: datetime | None,
        live: Sequence[UUID],
        limit: int,
    ) -> list[Judgement]:
        """As :meth:`rearm`, for claimed rows published to ``queue`` before an instant, whatever their lease.

        Rows that one of the ``live`` workers (instances) holds are left out. ``before`` None: all that were published.
        """
        return self._rearming.rearm_queue(judge, queue=queue, before=before, live=live, limit=limit)

    def relay_seen(
        self, instance: UUID, hostname: str, loops: str, live_for: timedelta, *, applied: datetime | None = None
    ) -> None:
        """A relay signs the register. ``applied``: all reports that it had received before then are applied."""
        self._register.relay_seen(instance, hostname, loops, live_for, applied=applied)

    def relay_gone(self, instance: UUID) -> None:
        """A relay that has stopped leaves the register."""
        self._register.relay_gone(instance)

    def marker_back(self, owner: UUID, marker: UUID) -> None:
        """A relay's marker has come back through the settlement queue."""
        self._register.marker_back(owner, marker)

    def relays(self) -> list[RelayInfo]:
        """Every relay that has signed, the latest sign first."""
        return self._register.relays()

    def worker_gone(self, instance: UUID) -> None:
        """A worker has said that its last task has ended and that it leaves."""
        self._register.worker_gone(instance)

    def workers(self, ttl: timedelta) -> list[WorkerInfo]:
        """Every worker that has sent a beacon, the latest first; live are those seen within ``ttl``."""
        return self._register.workers(ttl)

    def tend_namespaces(self) -> list[str]:
        """Note which namespaces had rows to run, and register those that have rows and that nobody did register.

        The latter come back. Call it now and then: it looks no more often than it may cost.
        """
        strangers = self.governing.tend()
        self._claims.meet(self.governing.waiting)
        if strangers:
            self.reset_watermark()
        return strangers

    def forget_processes(self, age: timedelta) -> int:
        """Delete relays and workers that have not been seen for ``age``; returns how many."""
        return self._register.forget(age)

    # -- the operator ------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """How many rows there are, by state; of the pending ones also how many are due, delayed and parked.

        ``oldest_due_seconds`` is how long the oldest due row has been due.
        """
        return self._operator.counts()

    def aside(self) -> int:
        """How many reports of workers were set aside, with the reason of each, in the table ``aside``."""
        return self._operator.aside()

    def ls(
        self,
        *,
        namespace: str | None = None,
        status: str | None = None,
        task: str | None = None,
        workflow_id: str | None = None,
        error: str | None = None,
        limit: int = 50,
    ) -> list[RowDetail]:
        """Rows, the newest first (pending ones: the next due first). ``error`` is a part of the error's text."""
        wanted = RowFilter(namespace=namespace, task=task, workflow_id=workflow_id, error=error)
        return self._operator.ls(wanted, status=status, limit=limit)

    def find(self, key: str) -> list[RowDetail]:
        """The row with that id, else the rows with that dispatch key (one a namespace), else with that task id."""
        return self._operator.find(key)

    def cancel(
        self, wanted: RowFilter, *, reason: str = "cancelled by an operator", limit: int = 5_000
    ) -> list[Cancelled]:
        """Cancel the pending and claimed rows among ``wanted``, ``limit`` at most, and return them."""
        return self._operator.cancel(wanted, reason, limit)

    def redrive(self, wanted: RowFilter, *, limit: int = 5_000) -> int:
        """Make the dead letters among ``wanted`` pending again, ``limit`` at most; returns how many."""
        redriven = self._operator.redrive(wanted, limit)
        self.reset_watermark()
        return redriven

    def discard(self, wanted: RowFilter, *, limit: int = 5_000) -> int:
        """Delete the dead letters among ``wanted``, ``limit`` at most; returns how many."""
        return self._operator.discard(wanted, limit)

    def prune(self, *, done: timedelta, failed: timedelta, limit: int = 5_000) -> int:
        """Delete, of the rows that ended longer ago than the given ages, at most ``limit``; returns how many.

        ``done`` counts for cancelled rows too. Call again, after a pause, until it returns less than ``limit``.
        """
        return self._operator.prune(done=done, failed=failed, limit=limit)

    # -- the clock ---------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The database's clock."""
        return self._claims.now()
