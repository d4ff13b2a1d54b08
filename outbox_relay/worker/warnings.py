"""What a worker's own configuration would do to rows, said at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from outbox_relay.settings import Settings

ENFORCING_POOLS = frozenset({"prefork"})
HARD_LIMIT_POOLS = frozenset({"gevent"})  # it ends a task that gives way now and then
UNTESTED_POOLS = frozenset({"eventlet"})
STOCK_STRATEGY = "celery.worker.strategy:default"
SHORT_QUEUE_LEASE = 3600.0
SHOWN = 3


def warnings_of(app: Celery, pool: str, settings: Settings) -> Iterator[str]:
    """Name what this worker will do that its owner may not expect, one text each."""
    tasks = [task for name, task in sorted(app.tasks.items()) if not name.startswith("celery.")]
    early = [task.name for task in tasks if not task.acks_late]
    if early:
        yield (
            f"{_some(early)} acknowledge early: a cold shutdown ends them in the middle, and their rows run again; "
            "set task_acks_late = True, or give them time with worker_soft_shutdown_timeout"
        )
    default = app.conf.task_time_limit or app.conf.task_soft_time_limit  # not on the tasks, in some versions of Celery
    limited = [task.name for task in tasks if task.time_limit or task.soft_time_limit or default]
    if pool in HARD_LIMIT_POOLS:
        softly = [task.name for task in tasks if task.soft_time_limit or app.conf.task_soft_time_limit]
        if softly:
            yield f"the {pool} pool does not enforce the soft time limits of {_some(softly)}"
    elif pool not in ENFORCING_POOLS and limited:
        yield f"the {pool} pool does not enforce the time limits of {_some(limited)}"
    if pool in UNTESTED_POOLS:
        yield f"the {pool} pool is not tested with the outbox: use gevent"
    if pool == "solo" and settings.queue_lease.total_seconds() < SHORT_QUEUE_LEASE:
        yield (
            "the solo pool sees only the message that it runs: what it has prefetched runs twice when it waits for "
            f"longer than outbox_queue_lease = {settings.queue_lease.total_seconds():g} s; write a longer one"
        )
    endless = [task.name for task in tasks if task.acks_late and not _acks_on_timeout(task)]
    if endless:
        yield f"{_some(endless)} go back to the broker at their time limit, again and again (task_acks_on_timeout)"
    foreign = [task for task in tasks if has_own_strategy(task)]
    if foreign:
        hurried = [task.name for task in foreign if not task.acks_late]
        yield (
            f"{_some([task.name for task in foreign])} have a worker strategy of their own: where it does not run each "
            "message as a task (celery-batches does not), a row is done when its message is acknowledged, however the "
            "batch ends" + (f"; set acks_late = True, or for {_some(hurried)} that is as they start" if hurried else "")
        )


def has_own_strategy(task: Any) -> bool:
    """Whether a worker does something of the task's own with its messages, instead of running each of them."""
    return bool(getattr(task, "Strategy", STOCK_STRATEGY) != STOCK_STRATEGY)


def _acks_on_timeout(task: Any) -> bool:
    """Celery before 5.7 has one attribute for failures and time limits."""
    return bool(getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout))


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
