"""A rehearsal: everything is staged and sent directly too, and what is staged is never published.

The direct send is what it was before. A rehearsal takes nothing away from it: what staging refuses is told, not raised,
and a statement that fails is undone by a savepoint.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery.canvas import Signature

from outbox_relay.errors import OutboxError
from outbox_relay.publish.capture import diverted
from outbox_relay.staging.astage import AsyncCapture
from outbox_relay.staging.capture import Capture
from outbox_relay.staging.connections import enter
from outbox_relay.staging.stage import Stager
from outbox_relay.store.sql import POSTGRESQL
from outbox_relay.store.staging import keep_unpublished

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from celery import Celery

    from outbox_relay.core.row import NewRow, Staged
    from outbox_relay.events import Events
    from outbox_relay.publish.capture import Sending, Sent
    from outbox_relay.staging.options import Options
    from outbox_relay.store.raw import Connection


class ShadowCapture(Capture):
    """Listens to what is sent inside a block."""

    offline = False
    tees = True
    _stager: ShadowStager

    def wants(self, sending: Sending) -> bool:
        try:
            return super().wants(sending)
        except OutboxError as error:
            self.tell(sending.name, error)
            return False

    def take(self, sent: Sent) -> None:
        try:
            super().take(sent)
        except Exception as error:  # noqa: BLE001 - the errors of every driver; a rehearsal takes nothing away
            self.tell(sent.task, error)

    def put(self, row: NewRow) -> None:
        with _undone_alone(enter(self.target, self._bind).connection):
            super().put(row)

    def tell(self, task: str, error: Exception) -> None:
        tell(self._stager.events, task, error)


class AsyncShadowCapture(ShadowCapture, AsyncCapture):
    """Listens to async code; what it heard is staged when the transaction commits."""

    def put(self, row: NewRow) -> None:
        AsyncCapture.put(self, row)

    def _insert(self, rows: list[NewRow]) -> None:
        for row in rows:
            try:
                with _undone_alone(enter(self.target, self._bind).connection):
                    super()._insert([row])
            except Exception as error:  # noqa: BLE001 - as above
                self.tell(row.common.task, error)


class Direct:
    """Hears what is sent for a row that is staged already, so that no capture or mark around it stages it again."""

    offline = False
    tees = True

    def __init__(self, app: Celery) -> None:
        self.app = app

    def wants(self, sending: Sending) -> bool:
        return True

    def take(self, sent: Sent) -> None:
        """It is staged."""


class ShadowStager(Stager):
    """Stages rows that no relay will claim, and sends what they stand for as if there were no outbox."""

    capturing = ShadowCapture
    acapturing = AsyncShadowCapture

    def __init__(self, *parts: Any, events: Events) -> None:
        super().__init__(*parts)
        self.events = events

    def stage(self, given: Any, signature: Any, options: Options, bind: Any = None) -> Staged:
        staged = super().stage(given, signature, options, bind)
        self.send_too([signature], [staged], options)
        return staged

    def stage_many(self, given: Any, signatures: Iterable[Any], options: Options, bind: Any = None) -> list[Staged]:
        many = [signatures] if isinstance(signatures, Signature) else list(signatures)
        staged = super().stage_many(given, many, options, bind)
        self.send_too(many, (), options)
        return staged

    def send_too(self, signatures: Sequence[Any], staged: Sequence[Staged], options: Options) -> None:
        """Send what was staged, under the ids of ``staged`` where they are given."""
        ids: list[dict[str, str]] = [{"task_id": one.task_id} for one in staged] or [{}] * len(signatures)
        for one, task_id in zip(signatures, ids, strict=True):
            self._send(self.signature(one).clone().set(**task_id), options)

    def insert(self, target: Any, rows: Sequence[NewRow], bind: Any, *, sort: bool = True) -> list[Staged]:
        staged = super().insert(target, rows, bind, sort=sort)
        keep_unpublished(enter(target, bind).connection, self.tables, [one.row_id for one in staged if one.created])
        return staged

    def _send(self, signature: Signature, options: Options) -> None:
        with diverted(Direct(self.app)):
            signature.apply_async(**({} if options.task_queue is None else {"queue": options.task_queue}))


def tell(events: Events, task: str, error: Exception) -> None:
    """Say what would have become of a task that is sent directly."""
    events.emit("shadow.refused", task=task, reason=str(error).partition("\n")[0])


@contextmanager
def rehearsed(staging: AbstractContextManager[None], events: Events, task: str) -> Iterator[None]:
    """Send a marked task within ``staging``: what goes wrong with that alone is told, and the task is sent."""
    try:
        staging.__enter__()
    except Exception as error:  # noqa: BLE001 - as above
        tell(events, task, error)
        yield
        return
    try:
        yield
    except BaseException as error:
        staging.__exit__(type(error), error, error.__traceback__)
        raise
    try:
        staging.__exit__(None, None, None)
    except Exception as error:  # noqa: BLE001 - as above
        tell(events, task, error)


@contextmanager
def _undone_alone(connection: Connection) -> Iterator[None]:
    """PostgreSQL fails a whole transaction with one statement: keep the shop's own out of that."""
    if connection.dialect.name != POSTGRESQL:
        yield
        return
    connection.exec_driver_sql("SAVEPOINT outbox_shadow")
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT outbox_shadow")
        raise
    connection.exec_driver_sql("RELEASE SAVEPOINT outbox_shadow")
