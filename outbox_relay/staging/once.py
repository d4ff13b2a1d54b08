"""A task's own database effects, exactly once: a marker that commits with them, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore

from outbox_relay.core.settlement import HEADER, Delivery
from outbox_relay.errors import AlreadyDone
from outbox_relay.staging.connections import accept, enter
from outbox_relay.staging.transaction import watch_sessions
from outbox_relay.store.once import mark_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from outbox_relay.store.schema import Tables


class SkippedRun(AlreadyDone, Ignore):  # type: ignore[misc]  # Celery is not typed
    """What a second run meets. To Celery it is an Ignore: the first run's result stays, and no callback follows."""


def once(app: Celery, tables: Callable[[], Tables], given: Any, bind: Any = None) -> None:
    """Mark the running task's row as done in this transaction. See :meth:`outbox_relay.Outbox.once`."""
    task = app.current_worker_task
    headers = getattr(task.request, "headers", None) if task is not None else None
    delivery = Delivery.parse((headers or {}).get(HEADER))
    if task is None or delivery is None:
        return  # called directly, or sent past the outbox: there is no row that this could be the second run of
    watch_sessions()
    place = enter(accept(given), bind)
    if not mark_once(place.connection, tables(), row_id=delivery.row_id, task_id=task.request.id):
        raise SkippedRun(f"row {delivery.row_id} ({task.name}, {task.request.id}) has committed its effects already")
