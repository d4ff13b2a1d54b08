"""A task's own database effects, exactly once: a marker that commits with them, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore

from outbox_relay.core.settlement import HEADER, Delivery
from outbox_relay.errors import AlreadyDone, RunAgain
from outbox_relay.staging.astage import inside
from outbox_relay.staging.connections import accept, accept_async, enter
from outbox_relay.staging.transaction import watch_sessions
from outbox_relay.store.once import is_serialization_failure, mark_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from outbox_relay.store.schema import Tables


class SkippedRun(AlreadyDone, Ignore):  # type: ignore[misc]  # Celery is not typed
    """What a second run meets. To Celery it is an Ignore: the first run's result stays, and no callback follows."""


class RepeatedRun(RunAgain, Ignore):  # type: ignore[misc]  # Celery is not typed
    """What meets another run in the middle of its commit. To Celery it is an Ignore, too; the row runs again."""


def once(app: Celery, tables: Callable[[], Tables], given: Callable[[], Any], bind: Any = None) -> None:
    """Mark the running task's row as done in this transaction. See :meth:`outbox_relay.Outbox.once`."""
    if (run := Run.of(app)) is not None:
        run.mark(accept(given()), tables(), bind)


async def aonce(app: Celery, tables: Callable[[], Tables], given: Any, bind: Any = None) -> None:
    """Do the same on an async connection. See :meth:`outbox_relay.Outbox.aonce`."""
    if (run := Run.of(app)) is not None:  # asked here: within a greenlet Celery knows of no running task
        await inside(accept_async(given), lambda sync: run.mark(sync, tables(), bind))


@dataclass(frozen=True, slots=True)
class Run:
    """A task that runs because a row was published."""

    row_id: int
    task_id: str
    task: str

    @classmethod
    def of(cls, app: Celery) -> Run | None:
        """Return the run of this thread; None where a task was called directly, or sent past the outbox."""
        task = app.current_worker_task
        headers = getattr(task.request, "headers", None) if task is not None else None
        delivery = Delivery.parse((headers or {}).get(HEADER))
        if task is None or delivery is None:
            return None  # there is no row that this could be the second run of
        return cls(delivery.row_id, task.request.id, task.name)

    def mark(self, target: Any, tables: Tables, bind: Any) -> None:
        """Mark the row in the transaction of ``target``.

        Raises:
            AlreadyDone: another run has committed.
            RunAgain: another run was about to, and this transaction cannot see whether it did.
        """
        watch_sessions()
        place = enter(target, bind)
        where = f"row {self.row_id} ({self.task}, {self.task_id})"
        try:
            first = mark_once(place.connection, tables, row_id=self.row_id, task_id=self.task_id)
        except Exception as error:
            if is_serialization_failure(error):
                raise RepeatedRun(f"another run of {where} was committing: a new run will see") from error
            raise
        if not first:
            raise SkippedRun(f"{where} has committed its effects already")
