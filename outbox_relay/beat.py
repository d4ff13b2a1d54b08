"""Beat: the outbox's own entries join the schedule that a shop has, and replace none of it.

They go to the relay's own queue, never to a worker. A relay re-arms and prunes by timers of its own as well. Two beats
send each entry twice, which does no harm.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery.signals import beat_init

from outbox_relay.errors import OutboxError
from outbox_relay.relay.upkeep import PRUNE, REARM
from outbox_relay.settings import is_enabled

if TYPE_CHECKING:
    from outbox_relay.outbox import Outbox

__all__ = ["PRUNE", "REARM", "entries", "install"]

PRUNE_EVERY = timedelta(hours=1)


def install(outbox: Outbox) -> None:
    """Let the outbox's entries join the schedule of every beat that starts for its app.

    Nothing is asked of the configuration before a beat starts: it may still change until then.
    """
    beat_init.connect(_join_schedule, dispatch_uid="outbox_relay.beat")


def entries(outbox: Outbox, *, models: bool = False) -> dict[str, dict[str, Any]]:
    """Return the outbox's entries in the form of Celery's ``beat_schedule``, under names of its own.

    With ``models`` true they are written as schedulers want them that keep entries in database models.

    Raises:
        SettingsError: the outbox's settings make no sense.
    """
    every = {REARM: outbox.settings.rearm_interval, PRUNE: PRUNE_EVERY}
    # Exchange and key are named beside the queue, so that no route of the shop's (say, for "*") sends them elsewhere.
    # The queue is named by text, since schedulers that store their entries can keep nothing else.
    queue = outbox.queues.relay.name
    address = {"queue": queue, "exchange": "", "routing_key": queue}
    made = {}
    for name, interval in every.items():
        seconds = interval.total_seconds()
        expires = {"expire_seconds": math.ceil(seconds)} if models else {"expires": seconds}
        options = {**address, **expires, "ignore_result": True, "serializer": "json"}
        made[name] = {"task": name, "schedule": interval, "options": options}
    return made


def _join_schedule(sender: Any, **_: Any) -> None:
    """Add the entries to the scheduler of a beat that starts (``sender`` is Celery's beat service).

    This late, whatever order the shop configures things in, its own entries are there already, and stay.
    """
    app = sender.app
    outbox = getattr(app, "outbox", None)
    if outbox is None or not is_enabled(app.conf):
        return
    scheduler = sender.scheduler
    # django-celery-beat and its kin turn options into columns: they drop ``expires`` and know it by another name.
    models = hasattr(scheduler.Entry, "_unpack_options")
    try:
        ours = entries(outbox, models=models)
    except OutboxError as error:
        # An exception would only be logged by the signal, and beat would go on without what the shop has asked for.
        raise SystemExit(f"beat does not start: {error}") from error
    # The queue's one definition, past Celery's own __setitem__: that would write a priority into it.
    dict.__setitem__(app.amqp.queues, outbox.queues.relay.name, outbox.queues.relay)
    scheduler.update_from_dict(ours)
