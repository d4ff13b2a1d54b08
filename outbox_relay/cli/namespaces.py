"""``namespace``, ``quota``, ``placement``: what holds for all rows of a tenant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import click

from outbox_relay.cli.output import note, print_json, print_table, say, table
from outbox_relay.cli.session import Refused, command, json_option, open_outbox, open_store, verb
from outbox_relay.core.namespaces import (
    UNLIMITED,
    NamespaceInfo,
    NamespaceState,
    PlacementKind,
    unknown_namespace,
)
from outbox_relay.core.placement import DEFAULT_NAMESPACE, name_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outbox_relay.outbox import Outbox
    from outbox_relay.store.outbox import Store


def placement_words(one: NamespaceInfo) -> str:
    """Say where the rows of a namespace go."""
    match one.placement:
        case PlacementKind.PREFER:
            return f"prefers {', '.join(one.nodes)}"
        case PlacementKind.PINNED:
            return f"pinned to {', '.join(one.nodes)}"
        case _:
            return "unplaced"


def quota_words(one: NamespaceInfo) -> str:
    """Say how many rows of a namespace may be in flight, and whether it is the default that says so."""
    words = "none" if one.quota is None else f"{one.quota:,}"
    return f"{words} (default)" if one.max_in_flight is None else words


COLUMNS: Mapping[str, Callable[[NamespaceInfo], Any]] = {
    "namespace": lambda one: one.namespace,
    "state": lambda one: f"{one.state.value}, paused" if one.held else one.state.value,
    "placement": placement_words,
    "quota": quota_words,
    "in flight": lambda one: one.in_flight,
    "due": lambda one: one.due,
    "parked": lambda one: one.parked,
    "oldest due": lambda one: one.oldest_due_at,
    "last seen": lambda one: one.last_seen_at,
}


DEFAULT = "default"


def read_quota(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    """Read a quota: a whole number, or one of two words.

    Raises:
        click.BadParameter: it is something else.
    """
    if value is None or value == DEFAULT:
        return value
    if value == "none":
        return UNLIMITED
    if value.isdecimal() and 1 <= int(value) < 2**31:
        return int(value)
    raise click.BadParameter(
        f"{value!r} is not a quota: write a whole number of at least 1, 'none' for no limit, or 'default' for "
        "outbox_default_quota (to stop a namespace, pause it)",
        context,
        parameter,
    )


# -- namespace -----------------------------------------------------------------------------------------------------


@click.group(short_help="List, make and deprecate namespaces.")
def namespace() -> None:
    """List namespaces, make one or let it take rows again, or deprecate one."""


@namespace.command(name="ls", short_help="List namespaces.")
@json_option
@verb
def ls_(as_json: bool) -> None:
    """List namespaces with what they have in flight and what is due."""
    outbox = open_outbox()
    store = open_store(outbox)
    found = store.governing.namespaces(outbox.settings.default_quota)
    if as_json:
        print_json(found)
    else:
        print_table(table(COLUMNS, found, now=store.now()))


@namespace.command(name="set", short_help="Make a namespace, or let it take rows again.")
@click.argument("name")
@click.option(
    "--max-in-flight", "quota", metavar="N|none|default", callback=read_quota, help="Its quota, as with the verb quota."
)
@json_option
@verb
def set_(name: str, quota: Any, as_json: bool) -> None:
    """Make a namespace where there is none, or let a deprecated one take rows again."""
    outbox = open_outbox()
    store = open_store(outbox)
    _check_name(name)
    columns = {} if quota is None else {"max_in_flight": None if quota == DEFAULT else quota}
    store.governing.set_namespace(name, create=True, state=NamespaceState.ACTIVE, **columns)
    _show(outbox, store, name, as_json=as_json, text=f"namespace {name} takes rows")


@namespace.command(short_help="Let a namespace take no new rows, and finish the ones it has.")
@click.argument("name")
@json_option
@verb
def deprecate(name: str, as_json: bool) -> None:
    """Refuse to stage new rows for a namespace from now on; those that it has run to their end."""
    outbox = open_outbox()
    store = open_store(outbox)
    if name == DEFAULT_NAMESPACE:
        raise Refused(f"{name} is where rows go that name no namespace: it cannot be deprecated; pause it instead")
    if not store.governing.set_namespace(name, create=False, state=NamespaceState.DEPRECATED):
        raise _missing(store, name)
    again = command(f"namespace set {name}")
    text = f"namespace {name} takes no new rows, and finishes those that it has; '{again}' takes this back"
    _show(outbox, store, name, as_json=as_json, text=text)


# -- quota ---------------------------------------------------------------------------------------------------------


@click.command(short_help="Show or set how many rows of a namespace may be in flight at once.")
@click.argument("name", metavar="NAMESPACE")
@click.argument("quota", metavar="[N|none|default]", callback=read_quota, required=False)
@json_option
@verb
def quota(name: str, quota: Any, as_json: bool) -> None:
    """Show, or set, how many rows of a namespace may be claimed at once.

    N is a whole number; none lifts every limit; default goes back to outbox_default_quota. Rows beyond it wait, and
    take no place from others. A lower quota lets what is in flight finish.
    """
    outbox = open_outbox()
    store = open_store(outbox)
    if quota is not None:
        govern(outbox, store, name, max_in_flight=None if quota == DEFAULT else quota)
    _show(outbox, store, name, as_json=as_json)


# -- placement -----------------------------------------------------------------------------------------------------


@click.group(short_help="Show or set the nodes that a namespace's rows go to.")
def placement() -> None:
    """Show or set on which nodes a namespace's rows run; a node that a row itself names always counts."""


@placement.command(short_help="Let rows go to nodes while one of them lives, else anywhere.")
@click.argument("name", metavar="NAMESPACE")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@json_option
@verb
def prefer(name: str, nodes: tuple[str, ...], as_json: bool) -> None:
    """Let a namespace's rows go to one of these nodes while it lives, and to the pool while none does."""
    _place(name, PlacementKind.PREFER, nodes, as_json=as_json)


@placement.command(short_help="Let rows go to nodes, and nowhere else.")
@click.argument("name", metavar="NAMESPACE")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@json_option
@verb
def pin(name: str, nodes: tuple[str, ...], as_json: bool) -> None:
    """Let a namespace's rows go to one of these nodes and nowhere else; while none of them lives, they wait."""
    _place(name, PlacementKind.PINNED, nodes, as_json=as_json)


@placement.command(short_help="Let rows go anywhere again.")
@click.argument("name", metavar="NAMESPACE")
@json_option
@verb
def clear(name: str, as_json: bool) -> None:
    """Let a namespace's rows go to the pool again."""
    outbox = open_outbox()
    store = open_store(outbox)
    _one(outbox, store, name)  # nothing is made in order to be cleared
    _place(name, PlacementKind.UNPLACED, (), as_json=as_json)


@placement.command(short_help="Show the nodes that a namespace's rows go to.")
@click.argument("name", metavar="NAMESPACE")
@json_option
@verb
def show(name: str, as_json: bool) -> None:
    """Show a namespace's placement, and which of its nodes live."""
    outbox = open_outbox()
    _show_placement(outbox, open_store(outbox), name, as_json=as_json)


def _place(name: str, kind: PlacementKind, nodes: Sequence[str], *, as_json: bool) -> None:
    for node in nodes:
        if fault := name_fault(node):
            raise click.UsageError(f"node {node!r} is refused: {fault}")
    outbox = open_outbox()
    store = open_store(outbox)
    govern(outbox, store, name, placement=kind, nodes=tuple(dict.fromkeys(nodes)))
    _show_placement(outbox, store, name, as_json=as_json)


def _show_placement(outbox: Outbox, store: Store, name: str, *, as_json: bool) -> None:
    one = _one(outbox, store, name)
    workers = [worker for worker in store.workers(outbox.settings.worker_ttl) if worker.live]
    live = [node for node in one.nodes if any(worker.node == node for worker in workers)]
    if as_json:
        print_json({"namespace": name, "placement": one.placement, "nodes": one.nodes, "live_nodes": live})
        return
    say(f"namespace {name}: {placement_words(one)}")
    if one.nodes and not live:
        waits = "its rows wait for one" if one.placement is PlacementKind.PINNED else "its rows go to the pool"
        note(f"warning: no live worker has one of these labels ('--outbox-node'): {waits}")


# -- shared --------------------------------------------------------------------------------------------------------


def govern(outbox: Outbox, store: Store, name: str, **columns: Any) -> None:
    """Set columns of a namespace; one that is missing is made where namespaces are open.

    Raises:
        click.UsageError: it is no name for a namespace.
        Refused: there is none, and namespaces are closed.
    """
    _check_name(name)
    if name not in (known := store.governing.names()):
        if outbox.settings.namespaces != "open":
            raise Refused(unknown_namespace(name, known).replace("'outbox ", f"'{command('')}"))
        near = difflib.get_close_matches(name, known, n=1)
        note(f"namespace {name} is new" + (f"; did you mean {near[0]}?" if near else ""))
    store.governing.set_namespace(name, create=True, **columns)


def _check_name(name: str) -> None:
    if fault := name_fault(name):
        raise click.UsageError(f"namespace {name!r} is refused: {fault}")


def _missing(store: Store, name: str) -> Refused:
    near = difflib.get_close_matches(name, store.governing.names(), n=1)
    return Refused(f"there is no namespace {name}" + (f": did you mean {near[0]}?" if near else ""))


def _one(outbox: Outbox, store: Store, name: str) -> NamespaceInfo:
    found = store.governing.namespaces(outbox.settings.default_quota, name)
    if not found:
        raise _missing(store, name)
    return found[0]


def _show(outbox: Outbox, store: Store, name: str, *, as_json: bool, text: str | None = None) -> None:
    one = _one(outbox, store, name)
    if as_json:
        print_json(one)
    elif text is not None:
        say(text)
    else:
        most = "any number of its rows" if one.quota is None else f"at most {one.quota:,} of its rows"
        default = " (the default)" if one.max_in_flight is None else ""
        say(f"namespace {name}: {most} may be in flight at once{default}; {one.in_flight:,} are, {one.due:,} are due")
