"""Telling workers that tasks of cancelled rows need not run."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from amqp import AMQPError
from kombu.exceptions import OperationalError as BrokerError

from outbox_relay.cli.output import note
from outbox_relay.cli.session import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from outbox_relay.core.processes import WorkerInfo
    from outbox_relay.core.row import Cancelled
    from outbox_relay.outbox import Outbox

AT_ONCE = (
    100  # ids in one broadcast: thousands of them would keep a worker busy for a second, or five with Redis results
)
POOL = "prefork"  # a thread cannot be ended, and a revoked task of its would end without a word
NOBODY: tuple[str, ...] = ()


def revoke(outbox: Outbox, rows: Sequence[Cancelled], *, terminate: bool) -> None:
    """Revoke the tasks of ``rows`` at the workers that hold or may get them; a failure is told, not raised.

    Only rows that are cancelled for good may be given: a worker refuses a revoked id however often it comes again.
    """
    published = [row for row in rows if row.published]
    if not published:
        return
    to_tell = recipients(published, outbox.store.workers(outbox.settings.worker_ttl))
    try:
        for hostnames, ids in to_tell.items():
            for some in _chunks(ids, AT_ONCE) if hostnames else ():
                outbox.app.control.revoke(some, destination=list(hostnames), terminate=terminate)
    except (BrokerError, AMQPError, *outbox.app.connection_for_write().connection_errors, OSError) as error:
        note(f"workers could not be told: {first_line(error)}; a task that runs all the same is noted on its row")
        return
    if untold := len(to_tell.get(NOBODY, ())):
        note(
            f"{untold:,} of them may run all the same, and their rows will say so: no live {POOL} worker holds them or "
            "serves their queue, and other pools cannot revoke"
        )


def recipients(rows: Iterable[Cancelled], workers: Iterable[WorkerInfo]) -> dict[tuple[str, ...], list[str]]:
    """Return the ids to revoke by the hostnames to tell: the worker that holds a row, else those that serve its queue.

    Only live workers of the one pool that can revoke are told; ids that concern none of them are under ``()``.
    """
    live = {str(worker.instance): worker for worker in workers if worker.live}
    told: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.worker in live:
            concerned = [live[row.worker]]
        else:
            concerned = [worker for worker in live.values() if row.queue is None or row.queue in worker.queues]
        hostnames = tuple(sorted({worker.hostname for worker in concerned if worker.pool == POOL}))
        told.setdefault(hostnames, []).append(row.task_id)
    return told


def _chunks(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(ids)
    while some := list(islice(iterator, size)):
        yield some
