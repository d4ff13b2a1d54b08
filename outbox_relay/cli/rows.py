"""``ls``, ``show``, ``cancel``: rows, one by one or many."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from outbox_relay.cli.output import confirmed, console, facts, note, plain, print_json, print_table, say, table
from outbox_relay.cli.revoke import revoke
from outbox_relay.cli.session import Refused, json_option, open_outbox, open_store, verb
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.row import RowFilter
from outbox_relay.errors import PublishError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outbox_relay.core.row import RowDetail
    from outbox_relay.outbox import Outbox
    from outbox_relay.store.outbox import Store

PREVIEW = 10
BRIEF = 100
COLUMNS: Mapping[str, Callable[[RowDetail], Any]] = {
    "id": lambda row: row.id,
    "status": lambda row: row.status,
    "task": lambda row: row.task,
    "namespace": lambda row: row.namespace,
    "queue": lambda row: queue_of(open_outbox(), row),
    "attempt": lambda row: row.attempt,
    "created": lambda row: row.created_at,
    "due": lambda row: row.visible_after if row.status is Status.PENDING else None,
    "error": lambda row: brief(row.error),
}


@click.command(short_help="List rows.")
@click.option("--namespace", metavar="N", help="Only rows of this namespace.")
@click.option("--status", type=click.Choice([status.value for status in Status]), help="Only rows in this state.")
@click.option("--task", metavar="T", help="Only rows of this task.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@json_option
@verb
def ls(namespace: str | None, status: str | None, task: str | None, limit: int, as_json: bool) -> None:
    """List rows: the newest first; with --status pending the next due, else the last ended."""
    outbox = open_outbox()
    rows = open_store(outbox).ls(namespace=namespace, status=status, task=task, limit=limit + 1)
    show_rows(outbox, rows[:limit], more=len(rows) > limit, as_json=as_json)


@click.command(short_help="Show a row.")
@click.argument("key")
@json_option
@verb
def show(key: str, as_json: bool) -> None:
    """Show everything about a row but its arguments. KEY is a row id, a dispatch key or a task id."""
    outbox = open_outbox()
    show_row(outbox, one_row(open_store(outbox), key), as_json=as_json)


@click.command(short_help="Cancel rows, and revoke their tasks.")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--workflow", metavar="W", help="Every row of this workflow.")
@click.option("--terminate", is_flag=True, help="End the task where it runs already (prefork workers).")
@click.option("--yes", is_flag=True, help="Do not ask.")
@verb
def cancel(keys: tuple[str, ...], workflow: str | None, terminate: bool, yes: bool) -> None:
    """Cancel rows that are pending or claimed; where one is published already, its task is revoked too.

    Only prefork workers can revoke: of those, the one that holds the row, else those that serve its queue, are told. A
    task that runs already is not ended by this, unless --terminate is given. What runs all the same, the row says.
    """
    if bool(keys) == bool(workflow):
        raise click.UsageError("name rows by KEY, or all rows of a workflow with --workflow")
    outbox = open_outbox()
    store = open_store(outbox)
    if workflow is not None:
        rows = [row for status in OPEN for row in store.ls(workflow_id=workflow, status=status.value, limit=PREVIEW)]
        seen = store.governing.workflow(workflow)
        number = 0 if seen is None else sum(seen.counts[status.value] for status in OPEN)
        wanted = RowFilter(workflow_id=workflow)
        what = f"the workflow {workflow}"
    else:
        found = [one_row(store, key) for key in keys]
        rows = [row for row in found if row.status in OPEN]
        number = len(rows)
        wanted = RowFilter(ids=tuple(row.id for row in found))
        what = ", ".join(keys)
    if not rows:
        raise Refused(f"nothing to cancel: no row of {what} is pending or claimed")
    preview(rows, number)
    if not confirmed(f"cancel {count(number, 'row')}", yes=yes):
        raise Refused("nothing was cancelled")
    total = 0
    with console(stderr=True).status("cancelling") as progress:
        while cancelled := store.cancel(wanted):
            total += len(cancelled)
            revoke(outbox, cancelled, terminate=terminate)
            progress.update(f"cancelled {total:,} of {number:,} rows")
    say(f"cancelled {count(total, 'row')}")


OPEN = (Status.PENDING, Status.CLAIMED)


# -- shared with the verbs for dead letters -----------------------------------------------------------------------


def brief(text: str | None, most: int = BRIEF) -> str | None:
    """Return the first line of an error, without the module of its class, and not too much of it."""
    if text is None:
        return None
    line = re.sub(r"^(\w+\.)+(?=\w+(:|$))", "", text.strip().partition("\n")[0])
    return line if len(line) <= most else line[: most - 1] + "…"


def count(number: int, thing: str) -> str:
    """Return a number of things in words."""
    return f"{number} {thing}" if number == 1 else f"{number:,} {thing}s"


def one_row(store: Store, key: str) -> RowDetail:
    """Return the row that a key names.

    Raises:
        Refused: there is none, or several namespaces have one.
    """
    rows = store.find(key)
    if not rows:
        raise Refused(f"no row has the id, the dispatch key or the task id {key}")
    if len(rows) > 1:
        ids = ", ".join(f"{row.id} ({row.namespace})" for row in rows)
        raise Refused(f"{len(rows)} rows have the key {key}: name one by its id: {ids}")
    return rows[0]


def queue_of(outbox: Outbox, row: RowDetail) -> str:
    """Return the broker's queue that a row was published to; else the one of its route, which placement may change."""
    if row.published_to is not None:
        return row.published_to
    try:
        return outbox.queues.target(row.namespace, row.task_queue, row.node).queue.name
    except PublishError:  # none can be named after it; the relay says so on the row
        return row.task_queue


def show_rows(outbox: Outbox, rows: Sequence[RowDetail], *, more: bool, as_json: bool) -> None:
    """Print a list of rows."""
    if as_json:
        print_json([{**plain(row), "queue": queue_of(outbox, row)} for row in rows])
    elif rows:
        print_table(table(COLUMNS, rows, now=outbox.store.now()))
        if more:
            note(f"there are more: these are the first {len(rows)}")
    else:
        say("no rows")


def show_row(outbox: Outbox, row: RowDetail, *, as_json: bool) -> None:
    """Print everything about one row, the broker's queue and the name of its worker included."""
    shown = {one.name: getattr(row, one.name) for one in fields(row)}
    shown |= {"queue": queue_of(outbox, row), "worker_hostname": _hostname(outbox, row.worker)}
    if as_json:
        print_json(shown)
    else:
        print_table(facts((name, value) for name, value in shown.items() if value is not None))


def _hostname(outbox: Outbox, worker: str | None) -> str | None:
    found = [] if worker is None else outbox.store.workers(outbox.settings.worker_ttl)
    return next((one.hostname for one in found if str(one.instance) == worker), None)


def preview(rows: Sequence[RowDetail], number: int | None = None) -> None:
    """Print, to standard error, the first of the ``number`` rows that would be touched (None: these are all)."""
    number = len(rows) if number is None else number
    columns = {name: COLUMNS[name] for name in ("id", "status", "task", "namespace", "error")}
    print_table(table(columns, rows[:PREVIEW]), stderr=True)
    if number > PREVIEW:
        note(f"… and {number - PREVIEW:,} more")
