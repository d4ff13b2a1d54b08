"""Leases: how long each holder of a row may be silent, and what becomes of a row whose lease has ended.

A lease says how long a row waits for a sign before it is looked at again. What it then becomes is judged by
evidence: liveness that is not known is not death, and only what is known to be gone is re-armed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from outbox_relay.core.beacon import HeldState
from outbox_relay.core.lifecycle import Event, Status, next_status

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta
    from uuid import UUID

BEATS_BEFORE_LEASE_END = 3  # a message expires so many heartbeats before its lease does
VANISHED_LIMIT = 3
SILENT_LIMIT = 3


@dataclass(frozen=True, slots=True)
class Leases:
    """The three leases of an outbox, and the heartbeat that they are measured against."""

    publish: timedelta
    queue: timedelta
    run: timedelta
    heartbeat: timedelta

    @property
    def publishing_time(self) -> timedelta:
        """How long a relay goes on sending a batch, by its own monotonic clock; what is left then is released."""
        return self.publish / 2

    @property
    def message_life(self) -> timedelta:
        """How long a message may wait on a broker that expires messages.

        It ends before the queue lease does, so that a worker that took the message at the last moment is heard
        (beacons go out every heartbeat, and one may be late) before the row is re-armed.
        """
        return self.queue - BEATS_BEFORE_LEASE_END * self.heartbeat

    @property
    def patience(self) -> timedelta:
        """How long beacons have to have been read without a gap before anybody's silence means anything."""
        return 3 * self.heartbeat


def relay_live_for(worker_ttl: timedelta, broker_heartbeat: timedelta) -> timedelta:
    """How long after its last sign a relay may still hold messages that the broker has given to it."""
    return max(worker_ttl, 3 * broker_heartbeat)


class Renewal(Enum):
    """What a beacon does to the lease of a row that it says is held."""

    AT_LEAST = "at least"  # the broker has the message as well: never shorter than the lease it has
    EXACTLY = "exactly"  # only the worker has it


def renewal(state: HeldState, *, message_expires: bool) -> Renewal:
    """Say how a beacon's word renews a lease: to the greater of what it is and a run lease from now, or to the latter.

    Only RabbitMQ (where messages expire) gives an unacknowledged message back as soon as its worker is gone.
    """
    alone = state is HeldState.RUNNING_EARLY or (state is HeldState.RUNNING_LATE and not message_expires)
    return Renewal.EXACTLY if alone else Renewal.AT_LEAST


# -- a lease has ended --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRow:
    """A claimed row that is to be judged, read under its lock.

    ``published_at`` and ``queue`` are None where the relay never got to mark it; ``worker`` (an instance) and
    ``started_at`` are what beacons said of this delivery, None where they said nothing.
    """

    id: int
    token: UUID
    claimed_at: datetime
    published_at: datetime | None
    queue: str | None
    worker: str | None
    started_at: datetime | None
    vanished: int
    silent: int


class InFlight(NamedTuple):
    """Whether any row is claimed, and whether the lease of one is over. Where none is, nobody's death matters."""

    claimed: bool
    stale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is known of a queue.

    ``ready`` None: it could not be asked. ``head_published_at``: when the message that is next to leave it was
    published, None where that is not known. ``consumed``: somebody consumes it now; ``reported``: a live worker that
    reports does. ``drained_at``: instants at which it was seen empty while somebody consumed it.
    """

    ready: int | None = None
    consumed: bool = False
    reported: bool = False
    head_published_at: datetime | None = None
    drained_at: tuple[datetime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a relay knows when it judges; ``message_life`` is None on brokers that do not expire messages."""

    now: datetime
    leases: Leases
    message_life: timedelta | None
    sights: Mapping[str, Sight] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What becomes of a stale row.

    With ``event`` None the row stays claimed: its lease goes on for ``lease`` from now. ``REARM`` makes it pending, due
    now, adds one to ``rearms`` and keeps the token; ``VANISHED`` and ``SILENT`` make it failed with ``error``.
    ``vanished`` and ``silent`` are the row's new counts.
    """

    row_id: int
    event: Event | None
    status: Status
    vanished: int
    silent: int
    lease: timedelta | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.event is None and self.lease is None:
            raise ValueError(f"row {self.row_id} is judged without a word on it: it would be looked at again for ever")


def judge(row: StaleRow, evidence: Evidence) -> Judgement:
    """Say what becomes of ``row``, whose lease has ended."""
    if row.started_at is not None:
        return judge_gone(row)
    if row.published_at is None or row.queue is None:
        return rearmed(row)  # its relay died before it marked the row, or never learned whether the broker took it
    if evidence.message_life is None:
        return _judge_kept(row, row.published_at, evidence.sights.get(row.queue, Sight()), evidence.leases)
    return _judge_expired(row, row.published_at, evidence.sights.get(row.queue, Sight()), evidence.message_life)


def judge_gone(row: StaleRow) -> Judgement:
    """Say what becomes of ``row``, whose worker is known to be gone.

    A task that was known to run when that happened, three times in a row, is what takes its workers down.
    """
    if row.started_at is None:
        return rearmed(row)
    vanished = row.vanished + 1
    if vanished < VANISHED_LIMIT:
        return rearmed(row, vanished=vanished)
    error = f"its worker vanished while it ran, {vanished} times in a row"
    return _failed(row, Event.VANISHED, error, vanished=vanished, silent=0)


def rearmed(row: StaleRow, *, vanished: int = 0, silent: int | None = None) -> Judgement:
    """The row goes back to pending. Also an operator's word, which needs no evidence."""
    if silent is None:
        silent = row.silent if row.worker is None else 0
    status = next_status(Status.CLAIMED, Event.REARM)
    return Judgement(row_id=row.id, event=Event.REARM, status=status, vanished=vanished, silent=silent)


def _judge_expired(row: StaleRow, published_at: datetime, sight: Sight, life: timedelta) -> Judgement:
    """The broker has dropped the message, or somebody took it: who did, and said nothing, is counted.

    Only a look at the queue while the message could still be in it tells the two apart.
    """
    taken = any(published_at < seen <= published_at + life for seen in sight.drained_at)
    return _silent(row) if taken and _is_mute(row, sight) else rearmed(row)


def _judge_kept(row: StaleRow, published_at: datetime, sight: Sight, leases: Leases) -> Judgement:
    """The broker keeps messages for ever: the row is re-armed only when its message is not there any more."""
    if sight.ready is None:
        return _waits(row, leases.patience)
    if sight.ready == 0:
        return _silent(row) if sight.consumed and _is_mute(row, sight) else rearmed(row)
    if sight.head_published_at is not None and sight.head_published_at > published_at:
        return rearmed(row)
    return _waits(row, leases.queue)


def _is_mute(row: StaleRow, sight: Sight) -> bool:
    """Whether nobody who took the row's message would report on it.

    Where a reporting worker serves the queue, a silent message may only wait unread behind a long task of its.
    """
    return row.worker is None and not sight.reported


def _silent(row: StaleRow) -> Judgement:
    silent = row.silent + 1
    if silent < SILENT_LIMIT:
        return rearmed(row, silent=silent)
    error = f"no worker of queue {row.queue} reports: is the outbox installed there?"
    return _failed(row, Event.SILENT, error, vanished=row.vanished, silent=silent)


def _waits(row: StaleRow, lease: timedelta) -> Judgement:
    return Judgement(
        row_id=row.id, event=None, status=Status.CLAIMED, vanished=row.vanished, silent=row.silent, lease=lease
    )


def _failed(row: StaleRow, event: Event, error: str, *, vanished: int, silent: int) -> Judgement:
    status = next_status(Status.CLAIMED, event)
    return Judgement(row_id=row.id, event=event, status=status, vanished=vanished, silent=silent, error=error)
