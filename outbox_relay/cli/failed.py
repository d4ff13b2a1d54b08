"""``failed ls|show|redrive|discard``: the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from outbox_relay.cli.output import confirmed, say
from outbox_relay.cli.rows import count, one_row, preview, show_row, show_rows
from outbox_relay.cli.session import Refused, json_option, open_outbox, open_store, verb
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.row import RowFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outbox_relay.core.row import RowDetail
    from outbox_relay.store.outbox import Store

F = TypeVar("F", bound="Callable[..., Any]")
FAILED = Status.FAILED.value
LOOK = 1_000  # so many rows are looked at before asking
AT_ONCE = 5_000  # rows in one transaction


@click.group(short_help="List, show, redrive or discard dead letters.")
def failed() -> None:
    """Dead letters: rows that have failed, kept for you to look at, to redrive or to discard."""


def _filters(function: F) -> F:
    for option in (
        click.option("--error", metavar="E", help="Only rows whose error contains this text."),
        click.option("--task", metavar="T", help="Only rows of this task."),
        click.option("--namespace", metavar="N", help="Only rows of this namespace."),
    ):
        function = option(function)
    return function


def _choice(function: F) -> F:
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="Every dead letter."),
        _filters,
        click.argument("keys", metavar="[KEY]...", nargs=-1),
    ):
        function = option(function)
    return function


@failed.command("ls")
@_filters
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@json_option
@verb
def list_failed(namespace: str | None, task: str | None, error: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, the latest first."""
    outbox = open_outbox()
    rows = open_store(outbox).ls(status=FAILED, namespace=namespace, task=task, error=error, limit=limit + 1)
    show_rows(outbox, rows[:limit], more=len(rows) > limit, as_json=as_json)


@failed.command()
@click.argument("key")
@json_option
@verb
def show(key: str, as_json: bool) -> None:
    """Show everything about a dead letter, with its error in full. KEY: a row id, a dispatch key or a task id."""
    outbox = open_outbox()
    show_row(outbox, _require_failed(one_row(open_store(outbox), key)), as_json=as_json)


@failed.command()
@_choice
@verb
def redrive(yes: bool, everything: bool, keys: tuple[str, ...], **filters: Any) -> None:
    """Make dead letters pending again, with attempts counted from zero and their last arguments."""
    store, wanted, rows = _chosen(keys, filters, everything=everything)
    _ask("redrive", rows, yes=yes)
    say(f"redriven {count(_repeat(store.redrive, wanted), 'row')}")


@failed.command()
@_choice
@verb
def discard(yes: bool, everything: bool, keys: tuple[str, ...], **filters: Any) -> None:
    """Delete dead letters for good."""
    store, wanted, rows = _chosen(keys, filters, everything=everything)
    _ask("delete for good", rows, yes=yes)
    say(f"discarded {count(_repeat(store.discard, wanted), 'row')}")


def _chosen(
    keys: Sequence[str], filters: dict[str, Any], *, everything: bool
) -> tuple[Store, RowFilter, list[RowDetail]]:
    """Return what is meant: the filter, and (the first of) the rows that it finds now.

    Raises:
        click.UsageError: nothing is named, or too much at once.
        Refused: there are no such rows.
    """
    named = any(value is not None for value in filters.values())
    if keys and (named or everything):
        raise click.UsageError("name rows by KEY, or choose them by options, not both")
    if not (keys or named or everything):
        raise click.UsageError("name rows by KEY, choose them with --namespace, --task or --error, or say --all")
    store = open_store(open_outbox())
    if keys:
        rows = [_require_failed(one_row(store, key)) for key in keys]
        return store, RowFilter(ids=tuple({row.id: None for row in rows})), rows
    rows = store.ls(status=FAILED, limit=LOOK, **filters)
    if not rows:
        raise Refused("there are no such dead letters")
    return store, RowFilter(**filters), rows


def _require_failed(row: RowDetail) -> RowDetail:
    if row.status is not Status.FAILED:
        raise Refused(f"row {row.id} ({row.task}) is {row.status.value}, not failed")
    return row


def _ask(what: str, rows: Sequence[RowDetail], *, yes: bool) -> None:
    preview(rows)
    number = f"{LOOK:,} rows or more" if len(rows) == LOOK else count(len(rows), "row")
    if not confirmed(f"{what} {number}", yes=yes):
        raise Refused("nothing was changed")


def _repeat(change: Callable[..., int], wanted: RowFilter) -> int:
    """Call ``change`` a batch at a time until nothing is left, and return how many rows it changed."""
    total = 0
    while (changed := change(wanted, limit=AT_ONCE)) == AT_ONCE:
        total += changed
    return total + changed
