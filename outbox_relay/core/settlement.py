"""Settlements: what a worker can say of a row, and what the row makes of it. How they travel: :mod:`.wire`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

from outbox_relay.core.lifecycle import Event, Status, effective, next_status

if TYPE_CHECKING:
    from outbox_relay.core.backoff import Backoff
    from outbox_relay.core.row import RowState

HEADER = "x-outbox"
VERSION = 1
MAX_ERROR_BYTES = 8_000
RAN = "it ran all the same"
MAX_DELAY = timedelta(days=366 * 10)


# -- the header ---------------------------------------------------------------------------------------------------


# Of these there is one a task or more, and a frozen dataclass takes three times as long to make as one that is not.


@dataclass(slots=True)
class Delivery:
    """What the ``x-outbox`` header says: which row, which attempt, under which claim, and where to report."""

    row_id: int
    attempt: int
    token: UUID
    queue: str

    def header(self) -> str:
        return delivery_header(self.row_id, self.attempt, self.token, self.queue)

    @classmethod
    def parse(cls, header: object) -> Delivery | None:
        """Read a header; None where there is none, or where it is not one of this version."""
        if not isinstance(header, str):
            return None
        parts = header.split(";", 4)
        if len(parts) != 5 or parts[0] != str(VERSION) or not parts[4]:
            return None
        try:
            return cls(int(parts[1]), int(parts[2]), UUID(hex=parts[3]), parts[4])
        except ValueError:
            return None


def delivery_header(row_id: int, attempt: int, token: UUID, queue: str) -> str:
    """Write the header of a :class:`Delivery`."""
    return f"{VERSION};{row_id};{attempt};{token.hex};{queue}"


# -- what a worker says -------------------------------------------------------------------------------------------


class Kind(str, Enum):
    """How a task ended, or did not."""

    DONE = "done"
    FAILED = "failed"
    AGAIN = "again"  # an exception that outbox_retry_for names
    LOST = "lost"
    UNKNOWN = "unknown"
    RETRY = "retry"
    RELEASED = "released"
    REQUEUED = "requeued"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The message of a task's own retry, as far as it differs from the row's.

    ``delay`` is in seconds from the moment the retry was asked for. A field that is None stays as the row has it.
    ``headers`` and ``properties`` are JSON objects, as in :class:`outbox_relay.core.row.Message`.
    """

    delay: float
    retries: int
    body: bytes | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    headers: bytes | None = None
    properties: bytes | None = None
    task_queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None


@dataclass(slots=True)
class Settlement:
    """One report about one delivery. Use the named constructors."""

    kind: Kind
    delivery: Delivery
    task_id: str
    error: str | None = None
    retried: Retried | None = None

    @classmethod
    def done(cls, delivery: Delivery, task_id: str, note: str | None = None) -> Settlement:
        """The task ran to its end; ``note`` says so where it did in an unusual way (ignored, replaced, skipped)."""
        return cls(Kind.DONE, delivery, task_id, note)

    @classmethod
    def failed(cls, delivery: Delivery, task_id: str, error: str) -> Settlement:
        """The task ended for good without success."""
        return cls(Kind.FAILED, delivery, task_id, storable(error))

    @classmethod
    def again(cls, delivery: Delivery, task_id: str, error: str) -> Settlement:
        """The task raised what ``outbox_retry_for`` names."""
        return cls(Kind.AGAIN, delivery, task_id, storable(error))

    @classmethod
    def lost(cls, delivery: Delivery, task_id: str, error: str) -> Settlement:
        """The process that ran the task is gone, and the broker does not have the message any more."""
        return cls(Kind.LOST, delivery, task_id, storable(error))

    @classmethod
    def unknown(cls, delivery: Delivery, task_id: str, error: str) -> Settlement:
        """The worker has no task of that name (yet)."""
        return cls(Kind.UNKNOWN, delivery, task_id, storable(error))

    @classmethod
    def retry(cls, delivery: Delivery, task_id: str, retried: Retried, error: str | None = None) -> Settlement:
        """The task asked to be run again."""
        return cls(Kind.RETRY, delivery, task_id, None if error is None else storable(error), retried)

    @classmethod
    def released(cls, delivery: Delivery, task_id: str) -> Settlement:
        """A worker gave the message back to the broker before it ran."""
        return cls(Kind.RELEASED, delivery, task_id)

    @classmethod
    def requeued(cls, delivery: Delivery, task_id: str) -> Settlement:
        """The message went back to the broker after it had started to run."""
        return cls(Kind.REQUEUED, delivery, task_id)

    @classmethod
    def cancelled(cls, delivery: Delivery, task_id: str, reason: str) -> Settlement:
        """Revoked, terminated or expired at the worker."""
        return cls(Kind.CANCELLED, delivery, task_id, storable(reason))


def storable(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """Make any text one that every database takes: no NUL, no lone surrogates, at most ``limit`` bytes of UTF-8.

    What is too long loses its middle: the head names the error, the tail is the traceback's end.
    """
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(clean) <= limit:
        return clean.decode()
    head = limit // 4
    tail = limit - head - 5
    return clean[:head].decode(errors="ignore") + "\n...\n" + clean[-tail:].decode(errors="ignore")


# -- what the row makes of it -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Policy:
    """What the settings say about rows that have to run again."""

    max_attempts: int
    backoff: Backoff


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The change that a settlement makes to its row.

    A row that goes to pending is due ``delay`` after the settlement is applied, by the database's clock. ``event`` is
    ``RETURNED`` where the claim goes on; every other event ends it and clears the token. ``event`` None changes no
    state: it records, on a cancelled row, what became of the task all the same.
    """

    row_id: int
    event: Event | None
    status: Status
    attempt: int
    failures: int
    retries: int
    delay: timedelta = timedelta(0)
    error: str | None = None
    retried: Retried | None = None


@dataclass(frozen=True, slots=True)
class Stale:
    """A settlement that changes nothing, and why."""

    row_id: int
    why: str


def decide(settlement: Settlement, row: RowState | None, policy: Policy, draw: float = 0.5) -> Verdict | Stale:
    """Say what ``settlement`` does to ``row`` (None: the row is gone). ``draw`` is a random number in [0, 1)."""
    delivery = settlement.delivery
    if row is None:
        return Stale(delivery.row_id, "no such row")
    if row.task_id != settlement.task_id:
        return Stale(row.id, "the task id is another")
    if settlement.kind is Kind.DONE and row.status is not Status.CANCELLED:
        return _decide_done(settlement, row)
    if row.status is Status.CANCELLED:
        return _decide_cancelled(settlement, row)
    if row.token is None or row.token != delivery.token:
        return Stale(row.id, "the claim is over")
    status = effective(row.status, holds_token=True)
    if status is not Status.CLAIMED:
        return Stale(row.id, f"the row is {status.value}")
    failures, attempt, retries = row.failures, row.attempt, row.retries
    event, delay = Event.FAILED, timedelta(0)
    match settlement.kind:
        case Kind.FAILED:
            event = Event.FAILED
        case Kind.CANCELLED:
            event = Event.CANCELLED
        case Kind.RELEASED | Kind.REQUEUED:
            event = Event.EXPIRED_RETURN if row.message_over else Event.RETURNED
        case Kind.RETRY:
            event, attempt = Event.RETRY, attempt + 1
            if settlement.retried is not None:
                retries = settlement.retried.retries
                delay = _seconds(settlement.retried.delay)
        case Kind.LOST | Kind.UNKNOWN | Kind.AGAIN:
            limit = policy.max_attempts if row.max_attempts is None else row.max_attempts
            if settlement.kind is not Kind.LOST:
                delay = policy.backoff.delay(failures, draw)
            failures += 1
            if failures >= limit:
                event, delay = Event.EXHAUSTED, timedelta(0)
            else:
                event, attempt = Event.AGAIN, attempt + 1
    return Verdict(
        row_id=row.id,
        event=event,
        status=next_status(status, event),
        attempt=attempt,
        failures=failures,
        retries=retries,
        delay=delay,
        error=settlement.error,
        retried=settlement.retried,
    )


def _decide_done(settlement: Settlement, row: RowState) -> Verdict | Stale:
    """Work that has been done is done, whatever was thought of it meanwhile."""
    if row.status is Status.DONE:
        return Stale(row.id, "the row is done")
    return Verdict(
        row_id=row.id,
        event=Event.DONE,
        status=next_status(row.status, Event.DONE),
        attempt=row.attempt,
        failures=row.failures,
        retries=row.retries,
        error=settlement.error,
    )


def _decide_cancelled(settlement: Settlement, row: RowState) -> Verdict | Stale:
    """Cancelled stays cancelled; what its worker says of its last attempt is written down.

    The cancel has cleared the token, so the attempt alone tells an old report; work that is done is told of anyway.
    """
    if settlement.kind is not Kind.DONE and settlement.delivery.attempt != row.attempt:
        return Stale(row.id, "the claim is over")
    first_line = (settlement.error or "").partition("\n")[0]
    match settlement.kind:
        case Kind.DONE:
            note = RAN
        case Kind.FAILED | Kind.AGAIN | Kind.LOST:
            note = f"{RAN} and failed: {first_line}"
        case Kind.RETRY:
            note = f"{RAN} and asked for a retry"
        case Kind.CANCELLED:
            note = f"its worker says: {first_line}"
        case _:
            return Stale(row.id, f"the row is {row.status.value}")
    return Verdict(
        row_id=row.id,
        event=None,
        status=row.status,
        attempt=row.attempt,
        failures=row.failures,
        retries=row.retries,
        error=note,
    )


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=min(max(value, 0.0), MAX_DELAY.total_seconds()))
