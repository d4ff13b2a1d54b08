"""``status`` and ``workers``: how much there is to do, and who is there to do it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from outbox_relay.cli.output import facts, note, print_json, print_table, say, table
from outbox_relay.cli.rows import count
from outbox_relay.cli.session import command, json_option, open_outbox, open_store, verb
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.processes import WAITS
from outbox_relay.core.wording import span
from outbox_relay.settings import ENABLE_HINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from outbox_relay.core.namespaces import HoldInfo, NamespaceInfo
    from outbox_relay.core.processes import RelayInfo, WorkerInfo
    from outbox_relay.outbox import Outbox

RELAYS: Mapping[str, Callable[[RelayInfo], Any]] = {
    "relay": lambda relay: relay.instance,
    "host": lambda relay: relay.hostname,
    "loops": lambda relay: relay.loops,
    "live": lambda relay: relay.live,
    "started": lambda relay: relay.started_at,
    "last seen": lambda relay: relay.last_seen_at,
}
WORKERS: Mapping[str, Callable[[WorkerInfo], Any]] = {
    "worker": lambda worker: worker.hostname,
    "pool": lambda worker: worker.pool,
    "node": lambda worker: worker.node,
    "namespaces": lambda worker: "all" if worker.namespaces is None else ", ".join(worker.namespaces),
    "queues": lambda worker: ", ".join(worker.queues),
    "in flight": lambda worker: worker.held,
    "live": lambda worker: worker.live,
    "started": lambda worker: worker.started_at,
    "last seen": lambda worker: worker.last_seen_at,
}


@click.command(short_help="Tell how many rows are in which state, and who lives.")
@json_option
@verb
def status(as_json: bool) -> None:
    """Tell how many rows are in which state, how old the oldest due one is, and who lives."""
    outbox = open_outbox()
    store = open_store(outbox)
    counts, relays, aside = store.counts(), store.relays(), store.aside()
    found = store.workers(outbox.settings.worker_ttl)
    holds, limited = store.governing.holds(), store.governing.limited(outbox.settings.default_quota)
    full = [one for one in limited if one.at_quota]
    live = {one.node for one in found if one.live}
    apart = [one for one in limited if one.waits_for_node(live)]
    if as_json:
        head = {"name": outbox.settings.name, "enabled": outbox.enabled}
        limits = {"holds": holds, "at_quota": full, "waiting_for_node": apart}
        print_json({**head, "rows": counts, "set_aside": aside, **limits, "relays": relays, "workers": found})
        return
    pairs = [*rows_of(counts), *limits_of(holds, full, apart), *processes_of(relays, found)]
    print_table(facts([("outbox", outbox.settings.name), *pairs]))
    if aside:
        note(f"warning: {count(aside, 'report')} of workers could not be applied: see {outbox.tables.aside.name}")
    for text in worries(outbox, counts, relays, found):
        note(f"warning: {text}")


def rows_of(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Say how many rows are in each state, and what keeps the pending ones."""
    waiting = [f"{counts[name]:,} {name}" for name in ("due", "delayed", "parked") if counts.get(name)]
    for state in Status:
        number = f"{counts[state.value]:,}"
        if state is Status.PENDING and waiting:
            number += f"  ({', '.join(waiting)})"
        yield state.value, number
    if counts.get("due"):
        yield "oldest due", f"{span(timedelta(seconds=counts['oldest_due_seconds']))} ago"


def limits_of(
    holds: Sequence[HoldInfo], full: Sequence[NamespaceInfo], apart: Sequence[NamespaceInfo]
) -> Iterator[tuple[str, str]]:
    """Say what is paused, which namespaces have no room for another row, and which wait for a node."""
    if holds:
        yield "paused", some([f"{one.scope.value} {one.value}" for one in holds])
    if full:
        yield "at quota", some([f"{one.namespace} ({one.in_flight:,} of {one.quota:,})" for one in full])
    if apart:
        yield "wait for a node", some([f"{one.namespace} (pinned to {', '.join(one.nodes)})" for one in apart])


def some(names: Sequence[str]) -> str:
    """Return the first few of many names."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")


SHOWN = 5


def processes_of(relays: Sequence[RelayInfo], found: Sequence[WorkerInfo]) -> Iterator[tuple[str, str]]:
    """Say how many relays and workers live."""
    for name, all_ in (("relays", relays), ("workers", found)):
        live = [_named(one) for one in all_ if one.live]
        yield name, f"{len(live)} live" + (f"  ({', '.join(sorted(set(live)))})" if live else "")


def _named(process: RelayInfo | WorkerInfo) -> str:
    return f"{process.hostname} {WAITS}" if getattr(process, "waits", False) else process.hostname


def worries(
    outbox: Outbox, counts: Mapping[str, int], relays: Sequence[RelayInfo], found: Sequence[WorkerInfo]
) -> Iterator[str]:
    """Name what keeps rows from moving."""
    if not outbox.enabled:
        yield f"the outbox is dormant: {ENABLE_HINT}"
    elif counts.get("due") and not any(relay.live for relay in relays):
        yield f"rows are due and no relay lives: run '{command('relay')}'"
    elif any(relay.live for relay in relays) and all(relay.waits for relay in relays if relay.live):
        yield f"no relay reaches the broker: see '{command('check')}'"
    elif counts["claimed"] and not any(worker.live for worker in found):
        yield "rows are claimed and no worker reports: is the outbox installed on the workers' app, and do they run?"


@click.command(short_help="List the workers that have reported.")
@json_option
@verb
def workers(as_json: bool) -> None:
    """List the workers that have reported, the latest sign of life first."""
    outbox = open_outbox()
    store = open_store(outbox)
    found = store.workers(outbox.settings.worker_ttl)
    if as_json:
        print_json(found)
    elif found:
        print_table(table(WORKERS, found, now=store.now()))
    else:
        say("no worker has reported yet")
