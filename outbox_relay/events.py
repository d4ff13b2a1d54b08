"""What happens in an outbox, as named events with fields; who wants to know subscribes.

Code emits events; one subscriber writes log lines, another feeds the metrics. Task arguments are never a field.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Subscriber = Callable[["Event"], None]

logger = logging.getLogger("outbox_relay")
_ONE = re.compile(r"(?<![\d.,])1 (row|report|settlement)s\b")


@dataclass(frozen=True, slots=True)
class Description:
    """What an event means: the level and the text (``str.format`` over its fields) of its log line."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    name: str
    fields: Mapping[str, Any]

    @property
    def description(self) -> Description:
        return CATALOGUE[self.name]

    def __str__(self) -> str:
        return _ONE.sub(r"1 \1", self.description.text.format_map(self.fields))


_D, _I, _W, _E = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

CATALOGUE: Mapping[str, Description] = {
    "relay.started": Description(_I, "relay {instance} started on {hostname}: {loops}"),
    "relay.waits": Description(_W, "relay {instance} does not start yet: it waits, and tries again"),
    "relay.draining": Description(_I, "relay {instance} drains: {reason}"),
    "relay.stopped": Description(_I, "relay {instance} stopped"),
    "relay.died": Description(_E, "relay loop {loop} died: {error}"),
    "relay.warning": Description(_W, "{text}"),
    "staging.discarded": Description(
        _W, "{rows} staged rows are gone: the session that they were staged in was closed without a commit"
    ),
    "shadow.refused": Description(_W, "the outbox would have refused {task}, which was sent directly: {reason}"),
    "sweep.claimed": Description(_D, "claimed {rows} rows"),
    "sweep.confirmed": Description(_D, "the broker has confirmed {rows} messages"),
    "sweep.published": Description(_D, "published {rows} rows"),
    "sweep.released": Description(_I, "released {rows} rows that were not sent: {reason}"),
    "sweep.undeliverable": Description(_W, "queue {queue} does not take messages ({rows} rows): {reason}"),
    "sweep.delivered": Description(_I, "queue {queue} takes messages again"),
    "sweep.unsendable": Description(_E, "row {row_id} ({task}) cannot be sent: {reason}"),
    "sweep.expired": Description(_I, "cancelled {rows} rows whose expires had passed"),
    "sweep.lapsed": Description(_W, "published {rows} rows after their claim was over"),
    "quota.reached": Description(_I, "as many rows in flight as their quota allows, so that others wait: {names}"),
    "quota.free": Description(_I, "no longer at their quota: {names}"),
    "hold.unreadable": Description(_E, "nothing is claimed: {reason}"),
    "hold.began": Description(_I, "held from now on: {scope} {names}"),
    "hold.ended": Description(_I, "no longer held: {scope} {names}"),
    "placement.waits": Description(_W, "none of the nodes that they are pinned to is live, so that rows wait: {names}"),
    "placement.served": Description(_I, "a node that they are pinned to is live again: {names}"),
    "placement.unreadable": Description(_E, "cannot read their placement, so that nothing is claimed of: {names}"),
    "broker.lost": Description(_W, "the broker {broker} is away: {error}"),
    "broker.back": Description(_W, "the broker {broker} is back"),
    "broker.blocked": Description(_W, "the broker {broker} blocks publishers: {reason}"),
    "broker.unblocked": Description(_W, "the broker {broker} takes messages again"),
    "store.lost": Description(_W, "the database is away: {error}"),
    "store.back": Description(_W, "the database is back"),
    "wake.lost": Description(_W, "no wake from the database, polling: {error}"),
    "wake.back": Description(_W, "woken by the database again"),
    "settle.received": Description(_D, "received {messages} messages"),
    "settle.applied": Description(_D, "settled {rows} rows: {kinds}"),
    "settle.stale": Description(_D, "row {row_id}: a report ({kind}) changed nothing: {reason}"),
    "settle.unchanged": Description(_I, "{reports} reports changed nothing: {reasons}"),
    "settle.failed": Description(_D, "row {row_id} failed: {error}"),
    "settle.failures": Description(_W, "{rows} rows failed, the first of them row {first}: {error}"),
    "settle.set_aside": Description(_E, "a settlement was set aside: {reason}"),
    "rearm.rearmed": Description(_W, "re-armed {rows} rows whose lease had ended"),
    "rearm.waits": Description(_D, "nothing is re-armed: {reason}"),
    "rearm.failed": Description(_D, "row {row_id} failed: {error}"),
    "rearm.failures": Description(_E, "{rows} rows failed, the first of them row {first}: {error}"),
    "namespaces.registered": Description(_I, "registered namespaces that had rows and were not known: {namespaces}"),
    "takeback.acknowledged": Description(_D, "acknowledged {messages} messages that do not run in queue {queue}"),
    "takeback.taken": Description(_W, "took back {rows} rows that waited in queue {queue}"),
    "takeback.shared": Description(_W, "queue {queue} has messages that are no rows: nothing is taken back from it"),
    "prune.pruned": Description(_I, "pruned {rows} rows"),
    "worker.started": Description(_I, "the outbox is installed on this worker, instance {instance}"),
    "worker.warning": Description(_W, "{text}"),
    "worker.lost": Description(_W, "settlements wait, the broker is away: {error}"),
    "worker.back": Description(_W, "settlements flow again"),
    "worker.dropped": Description(_E, "dropped {settlements} settlements: {reason}"),
    "worker.fault": Description(_E, "reporting on a task went wrong, the task itself is not touched: {error}"),
    "staging.sqlite_savepoint": Description(_W, "{text}"),
}


class Events:
    """The bell of one outbox: :meth:`emit` rings it for every subscriber, in the thread that emits."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = (write_log,)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber`` with every event from now on. What it raises is logged and goes no further."""
        self._subscribers = (*self._subscribers, subscriber)

    def emit(self, name: str, **fields: Any) -> None:
        """Tell every subscriber that ``name`` (a key of :data:`CATALOGUE`) happened."""
        if name not in CATALOGUE:
            raise KeyError(f"{name!r} is not in the catalogue of events")
        event = Event(name, fields)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                logger.exception("a subscriber failed on the event %s", name)


def write_log(event: Event) -> None:
    """The subscriber that every outbox has: one log line an event, with the fields as attributes of the record."""
    level = event.description.level
    if logger.isEnabledFor(level):
        extra = {"outbox_event": event.name, "outbox_fields": dict(event.fields)}
        logger.log(level, "%s", event, extra=extra)
