"""``pause``, ``resume``, ``holds``: rows that are kept back until somebody says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outbox_relay.cli.namespaces import govern
from outbox_relay.cli.output import console, print_json, print_table, say, table
from outbox_relay.cli.rows import count
from outbox_relay.cli.session import Refused, command, json_option, open_outbox, open_store, verb
from outbox_relay.core.namespaces import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outbox_relay.core.namespaces import HoldInfo

COLUMNS: Mapping[str, Callable[[HoldInfo], Any]] = {
    "scope": lambda hold: hold.scope,
    "value": lambda hold: hold.value,
    "since": lambda hold: hold.created_at,
    "parked": lambda hold: hold.parked,
    "reason": lambda hold: hold.reason,
}


def what_options(function: Any) -> Any:
    """Give a verb the three options of which one is named."""
    for option, metavar, text in (
        ("task", "T", "The task of this name, in every namespace."),
        ("workflow", "W", "The workflow of this id."),
        ("namespace", "N", "The namespace of this name."),
    ):
        function = click.option(f"--{option}", metavar=metavar, help=text)(function)
    return function


def one_of(options: Mapping[str, str | None]) -> tuple[Scope, str]:
    """Return what is meant.

    Raises:
        click.UsageError: not exactly one thing is named.
    """
    named = [(Scope(name), value) for name, value in options.items() if value is not None]
    if len(named) != 1:
        raise click.UsageError("name one thing: --namespace N, --workflow W or --task T")
    return named[0]


@click.command(short_help="Keep rows of a namespace, a workflow or a task back.")
@what_options
@click.option("--reason", metavar="R", help="Why; it is shown to whoever asks for the rows.")
@json_option
@verb
def pause(namespace: str | None, workflow: str | None, task: str | None, reason: str | None, as_json: bool) -> None:
    """Keep rows back: what is pending waits, also what is staged, retried, re-armed or redriven from now on.

    What is in flight already is finished. Waiting rows spend no attempt and stand in nobody's way.
    """
    scope, value = one_of({"namespace": namespace, "workflow": workflow, "task": task})
    outbox = open_outbox()
    store = open_store(outbox)
    if scope is Scope.NAMESPACE:
        govern(outbox, store, value)
    store.governing.pause(scope, value, reason)
    if as_json:
        print_json(next(one for one in store.governing.holds() if (one.scope, one.value) == (scope, value)))
        return
    again = command(f"resume --{scope.value} {value}")
    say(f"{scope.value} {value} is paused: its pending rows wait, what is in flight is finished; '{again}' ends this")


@click.command(short_help="Let rows go on that were kept back by pause.")
@what_options
@json_option
@verb
def resume(namespace: str | None, workflow: str | None, task: str | None, as_json: bool) -> None:
    """Let rows go on that were kept back; they are due again, in the order in which they were before."""
    scope, value = one_of({"namespace": namespace, "workflow": workflow, "task": task})
    store = open_store(open_outbox())
    with console(stderr=True).status("resuming"):
        rows = store.governing.resume(scope, value)
    if rows is None:
        raise Refused(f"{scope.value} {value} is not paused: see '{command('holds')}'")
    if as_json:
        print_json({"scope": scope, "value": value, "rows": rows})
    else:
        say(f"{scope.value} {value} is resumed: {count(rows, 'row')} that it kept back may be claimed again")


@click.command(short_help="List what is paused.")
@json_option
@verb
def holds(as_json: bool) -> None:
    """List what is paused, since when and why, with the rows that were due since and are parked."""
    store = open_store(open_outbox())
    found = store.governing.holds()
    if as_json:
        print_json(found)
    elif found:
        print_table(table(COLUMNS, found, now=store.now()))
    else:
        say("nothing is paused")
