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

    from outbox_relay.core.row import Cancelled
    from outbox_relay.outbox import Outbox

AT_ONCE = (
    100  # ids in one broadcast: thousands of them would keep a worker busy for a second, or five with Redis results
)
POOL = "prefork"  # a thread cannot be ended, and a revoked task of its would end without a word


def revoke(outbox: Outbox, rows: Sequence[Cancelled], *, terminate: bool) -> None:
    """Revoke the tasks of ``rows`` at the workers that hold or may get them; a failure is told, not raised."""
    if not rows:
        return
    workers = [worker for worker in outbox.store.workers(outbox.settings.worker_ttl) if worker.live]
    able = {str(worker.instance): worker.hostname for worker in workers if worker.pool == POOL}
    elsewhere = {str(worker.instance) for worker in workers} - able.keys()
    held: dict[str, list[str]] = {}
    for row in rows:
        if row.worker not in elsewhere:
            held.setdefault(able.get(row.worker or "", ""), []).append(row.task_id)
    try:
        for hostname, ids in held.items():
            for some in _chunks(ids, AT_ONCE):
                _send(outbox, some, [hostname] if hostname else sorted(able.values()), terminate=terminate)
    except (BrokerError, AMQPError, *outbox.app.connection_for_write().connection_errors, OSError) as error:
        note(f"workers could not be told: {first_line(error)}; a task that runs all the same is noted on its row")


def _send(outbox: Outbox, ids: list[str], hostnames: list[str], *, terminate: bool) -> None:
    if hostnames:
        outbox.app.control.revoke(ids, destination=hostnames, terminate=terminate)


def _chunks(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(ids)
    while some := list(islice(iterator, size)):
        yield some
