"""A row of the outbox, as each step of its life needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta
    from uuid import UUID

    from outbox_relay.core.lifecycle import Status


# A relay makes a few of these for each row; a frozen dataclass takes three times as long to make as one that is not.


@dataclass(slots=True, kw_only=True)
class Message:
    """A task message as Celery builds it; the outbox stores it as it is and never decodes the body.

    ``headers`` and ``properties`` are JSON objects in kombu's JSON (UTF-8). ``properties`` hold what AMQP calls
    basic properties besides content type and encoding: correlation_id, reply_to, priority, delivery_mode.
    """

    task: str
    task_id: str
    task_queue: str
    exchange: str
    routing_key: str
    body: bytes
    content_type: str
    content_encoding: str
    headers: bytes
    properties: bytes


class Common(NamedTuple):
    """What rows of one task, staged with the same options, have in common: where they go, and what is done with them.

    Rows that share it are stored with one value a column instead of one a row.
    """

    namespace: str
    task_queue: str
    node: str | None
    exchange: str
    routing_key: str
    task: str
    content_type: str
    content_encoding: str
    workflow_id: str | None = None
    run_id: str | None = None
    retries: int = 0
    max_attempts: int | None = None
    settle_on: str | None = None


class NewRow(NamedTuple):
    """A row to be staged. (A tuple, because a hundred thousand of them may be made in one call.)

    Its message is that of :class:`Message`: ``body``, ``headers`` and ``properties`` are the row's own, the rest is
    ``common``. It is due at ``visible_after`` where that is given (aware), else ``delay`` after the insert by the
    database's clock. ``content_hash`` (16 bytes) tells two rows with the same dispatch key apart.
    """

    common: Common
    dispatch_key: str
    content_hash: bytes
    task_id: str
    body: bytes
    headers: bytes
    properties: bytes
    ordinal: int | None = None
    visible_after: datetime | None = None
    delay: timedelta | None = None
    expires_at: datetime | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What makes the row unique: its namespace and its dispatch key."""
        return self.common.namespace, self.dispatch_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What staging gives back: the id that the task will run under, and whether this call made the row."""

    row_id: int
    task_id: str
    dispatch_key: str
    created: bool


class Claim(NamedTuple):
    """One relay's right to one delivery of a row."""

    row_id: int
    token: UUID


@dataclass(slots=True, kw_only=True)
class ClaimedRow:
    """A row that a relay has claimed and is about to publish."""

    id: int
    token: UUID
    namespace: str
    node: str | None
    message: Message
    attempt: int
    retries: int
    settle_on: str | None
    expired: bool

    @property
    def claim(self) -> Claim:
        return Claim(self.id, self.token)


class Batch(list[ClaimedRow]):
    """Rows claimed at once, oldest first. ``more`` says that others are due already: claim again without waiting."""

    def __init__(self, rows: Iterable[ClaimedRow] = (), *, more: bool = False) -> None:
        super().__init__(rows)
        self.more = more


class Published(NamedTuple):
    """A claimed row whose message the broker has confirmed.

    ``to`` is the queue that it went to; ``final`` says that the row settles on publish, so it is done.
    """

    claim: Claim
    to: str
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDetail:
    """Everything that an operator may see of a row: its columns by their names, without the message itself.

    ``body_bytes`` is the size of the body. ``due`` says that a relay may claim it now.
    """

    id: int
    namespace: str
    dispatch_key: str
    workflow_id: str | None
    run_id: str | None
    ordinal: int | None
    task_queue: str
    node: str | None
    exchange: str
    routing_key: str
    task: str
    task_id: str
    content_type: str
    content_encoding: str
    body_bytes: int
    status: Status
    due: bool
    parked: bool
    attempt: int
    failures: int
    retries: int
    max_attempts: int | None
    rearms: int
    vanished: int
    silent: int
    visible_after: datetime
    expires_at: datetime | None
    claim_token: UUID | None
    claimed_at: datetime | None
    claimed_by: UUID | None
    lease_until: datetime | None
    published_at: datetime | None
    published_to: str | None
    started_at: datetime | None
    worker: str | None
    error: str | None
    settle_on: str | None
    created_at: datetime
    settled_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Which rows an operator means; every field that is given narrows the choice, none at all means every row.

    ``error`` is a part of the text of ``error``.
    """

    ids: tuple[int, ...] | None = None
    namespace: str | None = None
    task: str | None = None
    workflow_id: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A row that was cancelled. Where ``published`` is true its task may run all the same, until it is revoked.

    ``worker`` is the instance that had reported to hold it, if one had; ``queue`` is where its message went, if a relay
    has marked it.
    """

    id: int
    task_id: str
    published: bool
    worker: str | None
    queue: str | None = None


@dataclass(slots=True, kw_only=True)
class RowState:
    """What a settlement has to know of the row it is about, read under the row's lock.

    ``message_over`` says that the message's time on the broker has ended: it cannot be delivered again.
    """

    id: int
    task_id: str
    status: Status
    token: UUID | None
    attempt: int
    failures: int
    retries: int
    max_attempts: int | None
    message_over: bool = False
