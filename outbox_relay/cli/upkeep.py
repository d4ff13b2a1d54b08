"""``rearm`` and ``prune``: what a relay does by itself, at an operator's word."""

from __future__ import annotations

import difflib
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from outbox_relay import beat
from outbox_relay.cli.output import confirmed, console, say
from outbox_relay.cli.rows import count
from outbox_relay.cli.session import Refused, first_line, open_outbox, open_store, require_broker_driver, verb
from outbox_relay.core.leases import rearmed
from outbox_relay.errors import PublishError
from outbox_relay.publish.reconnect import errand
from outbox_relay.store.engine import Database, open_engine
from outbox_relay.store.once import prune_markers

if TYPE_CHECKING:
    from outbox_relay.outbox import Outbox

AT_ONCE = 1_000
FORGET_AFTER = timedelta(days=1)


@click.command(short_help="Look for stale claims now, or re-arm a lost queue's rows.")
@click.option(
    "--queue", metavar="Q", help="The broker queue that is lost: its rows are re-armed without further proof."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@verb
def rearm(queue: str | None, yes: bool) -> None:
    """Ask the relays to look for stale claims now; with --queue, re-arm a lost queue's rows.

    --queue is your word that the broker lost that queue: every row published to it is published again, but those that
    a live worker says it holds. Where the queue is not lost, its tasks run twice.
    """
    outbox = open_outbox()
    if queue is None:
        outbox.require_enabled()
        require_broker_driver(outbox.app)
        options: dict[str, Any] = {
            "queue": outbox.queues.relay,
            "exchange": "",
            "routing_key": outbox.queues.relay.name,
        }
        expires = outbox.settings.rearm_interval.total_seconds()
        try:
            with errand(outbox.app) as connection:
                options |= {"connection": connection, "ignore_result": True, "retry": False}
                outbox.app.send_task(beat.REARM, expires=expires, **options)
        except PublishError as error:
            raise Refused(f"the broker cannot be reached: {first_line(error)}") from error
        say("the relays have been asked to re-arm")
        return
    _rearm_queue(outbox, queue, yes=yes)


def _rearm_queue(outbox: Outbox, queue: str, *, yes: bool) -> None:
    store = open_store(outbox)
    _require_queue(outbox, queue)
    if not confirmed(f"publish again every row that waits in {queue}", yes=yes):
        raise Refused("nothing was re-armed")
    before = store.now()  # what a relay publishes meanwhile is not lost
    live = [worker.instance for worker in store.workers(outbox.settings.worker_ttl) if worker.live]
    total = 0
    while done := store.rearm_queue(rearmed, queue=queue, before=before, live=live, limit=AT_ONCE):
        total += len(done)
    say(f"re-armed {count(total, 'row')} of the queue {queue}")


def _require_queue(outbox: Outbox, queue: str) -> None:
    """Refuse a name that neither rows, workers nor the app know; a task queue's name may be no broker queue's.

    Raises:
        Refused: nobody knows it; the message names those that are meant.
    """
    workers = outbox.store.workers(outbox.settings.worker_ttl)
    known = {*outbox.store.queues_in_flight(AT_ONCE), *(name for worker in workers for name in worker.queues)}
    if queue in known or queue in outbox.app.amqp.queues:
        return
    near = sorted(name for name in known if queue in re.split("[:@]", name))
    near = near or difflib.get_close_matches(queue, sorted(known), n=3)
    hint = f"did you mean {' or '.join(near[:5])}?" if near else "'ls' names each row's queue"
    raise Refused(f"no row was published to a queue named {queue}, and no worker serves one: {hint}")


@click.command(short_help="Delete rows that have been kept long enough.")
@click.option(
    "--once-only", metavar="URL", help="Delete, in this database instead, what outbox.once() noted of rows long gone."
)
@verb
def prune(once_only: str | None) -> None:
    """Delete rows that ended longer ago than they are kept (outbox_retention_done, outbox_retention_failed).

    The markers of outbox.once() go with their rows; those in a database that is not the outbox's go by --once-only.
    """
    outbox = open_outbox()
    store = open_store(outbox)
    if once_only is not None:
        _prune_markers(outbox, once_only)
        return
    settings = outbox.settings
    total = 0
    with console(stderr=True).status("pruning") as progress:
        while pruned := store.prune(done=settings.retention_done, failed=settings.retention_failed):
            total += pruned
            progress.update(f"pruned {total:,} rows")
    store.forget_processes(FORGET_AFTER)
    say(f"pruned {count(total, 'row')}")


def _prune_markers(outbox: Outbox, url: str) -> None:
    engine = open_engine(url, named="--once-only")
    age = max(outbox.settings.retention_done, outbox.settings.retention_failed)
    pages = prune_markers(Database(engine, outbox.tables), Database(outbox.store.engine, outbox.tables), age=age)
    say(f"pruned {count(sum(pages), 'marker')}")
    engine.dispose()
