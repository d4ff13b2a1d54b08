"""Why a row is where it is, and what would move it: one sentence, made of what the database and the broker say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_relay.core.keeping import Kept, holds, kept_back, line, standing
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.wording import age, brief, counted, instant, names, span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from outbox_relay.core.processes import RelayInfo, WorkerInfo
    from outbox_relay.core.row import RowDetail

SWEEP_LOOP = "sweep"
_REFUSED = "refused by its queue "


def refused_by(queue: str, reason: str) -> str:
    """Return the ``error`` of a row whose queue did not take its message, in a form that tells it from a task's own."""
    return f"{_REFUSED}{queue}: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSight:
    """What a look at a broker's queue gave.

    ``consumers`` None: the transport does not know. ``ready`` None: it could not be seen, because it is ``missing`` or
    because of a ``trouble``.
    """

    ready: int | None = None
    consumers: int | None = None
    missing: bool = False
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a row. ``now`` is the database's clock; ``sight`` is of the queue that it was published to.

    ``kept`` is what may keep it back; it counts for pending rows only.
    """

    row: RowDetail
    now: datetime
    relays: Sequence[RelayInfo]
    workers: Sequence[WorkerInfo]
    run_lease: timedelta
    sight: QueueSight | None = None
    kept: Kept = Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``why`` a row is where it is, and what ``moves`` it; None where nothing does any more.

    A command in ``moves`` is written ``'outbox …'``; ``why`` may hold text of others: of tasks, brokers, databases.
    """

    id: int
    task: str
    task_id: str
    status: Status
    why: str
    moves: str | None

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        said = f"row {self.id} ({self.task}) is {self.status.value}: {self.why}"
        return said if self.moves is None else f"{said}; {self.moves}"


def needs_sight(row: RowDetail) -> bool:
    """Whether the explanation of ``row`` depends on what is seen of the queue that it was published to."""
    return row.status is Status.CLAIMED and row.published_to is not None and row.worker is None


def explain(facts: Facts) -> Explanation:
    """Say why a row is where it is, and what would move it."""
    row = facts.row
    moves: str | None
    match row.status:
        case Status.PENDING:
            why, moves = _pending(facts)
        case Status.CLAIMED if row.worker is not None:
            why, moves = _held(facts, row.worker)
        case Status.CLAIMED if row.published_to is not None:
            why, moves = _queued(facts, row.published_to)
        case Status.CLAIMED:
            why, moves = _publishing(facts)
        case _:
            why, moves = _ended(facts)
    return Explanation(id=row.id, task=row.task, task_id=row.task_id, status=row.status, why=why, moves=moves)


# -- pending ------------------------------------------------------------------------------------------------------


def _pending(facts: Facts) -> tuple[str, str]:
    row, now, kept = facts.row, facts.now, facts.kept
    because = _what_came_before(row, now)
    if row.visible_after > now:
        until = f"{instant(row.visible_after)} ({age(row.visible_after, now)})"
        held = f"; it is held by {holds(kept, now)}" if kept.holds else ""
        return f"it is not due until {until}{because}{held}{standing(kept)}", "a relay claims it then" + (
            ", unless it is still held" if kept.holds else ""
        )
    if row.expires_at is not None and row.expires_at <= now:
        why = f"it is due, and its own expires passed {age(row.expires_at, now)}"
        return why, "a relay cancels it instead of publishing it"
    if (found := kept_back(row, kept, facts.workers, now)) is not None:
        why, moves = found
        return f"it {why}{because}{standing(kept)}", moves
    return _due(facts, because)


def _due(facts: Facts, because: str) -> tuple[str, str]:
    """Nothing keeps the row back but that a relay has to come to it."""
    row, kept = facts.row, facts.kept
    since = f"it has been due for {span(facts.now - row.visible_after)}{because}"
    sweeping = [one for one in facts.relays if one.live and SWEEP_LOOP in one.loops]
    if not sweeping and (waiting := [one for one in facts.relays if one.live and one.waits]):
        who = names(one.hostname for one in waiting)
        why = f"{since}, and {who} {'waits' if len(waiting) == 1 else 'wait'} for the broker, which is away"
        return f"{why}{standing(kept)}", "a relay claims it when the broker is back: see 'outbox check'"
    if not sweeping:
        return f"{since}, and no relay lives that would claim it{standing(kept)}", "start one: 'outbox relay'"
    if row.parked:
        why = f"{since}, and was held, which it is not any more{standing(kept)}"
        return why, "a relay puts it back among the due rows at its next look"
    some = names(one.hostname for one in sweeping)
    moves = "it is claimed in its turn; where that does not come, the broker is away or blocks: see 'outbox check'"
    waits = f"waits {line(row, kept)} ({counted(len(sweeping), 'relay')} live: {some})"
    return f"{since}, and {waits}{standing(kept)}", moves


def _what_came_before(row: RowDetail, now: datetime) -> str:
    """Say why a row is pending again, if it is; a clause of its own."""
    error = None if row.error is None else brief(row.error)
    if row.claim_token is not None:
        return f", re-armed ({_times(row.rearms)}) since its lease ended and nothing was heard of it"
    if error is not None and error.startswith(_REFUSED):
        queue, _, reason = error.removeprefix(_REFUSED).partition(": ")
        if row.visible_after > now:
            return f", since the circuit of its queue {queue} is open: it refused messages because {reason}"
        return f", since its queue {queue} refused the last message because {reason}"
    if error is not None:
        return f", to run again after attempt {row.attempt} ended with {error}"
    return f", to run again: its task asked for retry {row.retries}" if row.retries and row.attempt else ""


# -- claimed ------------------------------------------------------------------------------------------------------


def _publishing(facts: Facts) -> tuple[str, str]:
    row = facts.row
    relay = next((one for one in facts.relays if one.instance == row.claimed_by), None)
    who = f"relay {row.claimed_by}" + ("" if relay is None else f" on {relay.hostname}")
    since = "" if row.claimed_at is None else f" {age(row.claimed_at, facts.now)}"
    if relay is not None and relay.live:
        why = f"{who}, which lives, claimed it{since} and is publishing it"
    else:
        why = f"{who}, which is gone, claimed it{since} and has not said that it was published"
    return why, f"where it is not published by {_lease(facts, 'publish lease')}, it is re-armed"


def _queued(facts: Facts, queue: str) -> tuple[str, str]:
    row, sight = facts.row, facts.sight or QueueSight()
    since = "" if row.published_at is None else f" {age(row.published_at, facts.now)}"
    lease = _lease(facts, "queue lease")
    if sight.trouble is not None:
        why = f"it was published to the queue {queue}{since}, and the broker cannot be asked: {brief(sight.trouble)}"
        return why, f"a worker reports on it, or it is looked at again at {lease}"
    if sight.missing:
        why = f"it was published to the queue {queue}{since}, and the broker has no such queue any more"
        return why, f"'outbox rearm --queue {queue}' publishes it again at once, else that is done at {lease}"
    why = f"it was published to the queue {queue}{since}, and {_depth(sight)}; {_served(facts, queue, sight)}"
    moves = f"a worker reports on it, or it is looked at again at {lease}"
    if sight.ready == 0:
        moves += f"; if the broker lost it, 'outbox rearm --queue {queue}' publishes it again"
    return why, moves


def _depth(sight: QueueSight) -> str:
    if sight.ready is None:
        return "no worker has reported on it"
    if sight.ready == 0:
        return "nothing waits there any more: somebody took it and has not reported on it"
    if sight.ready == 1:
        return "waits there behind no other message"
    return f"waits there behind {sight.ready - 1:,} messages at most"


def _served(facts: Facts, queue: str, sight: QueueSight) -> str:
    serving = [one.hostname for one in facts.workers if one.live and queue in one.queues]
    if serving:
        return f"of the workers that report, {names(serving)} {'serves' if len(serving) == 1 else 'serve'} that queue"
    if sight.consumers == 0:
        return "nobody consumes that queue: start a worker for it"
    consumed = "" if sight.consumers is None else f"{counted(sight.consumers, 'consumer')}, but "
    return f"{consumed}no worker that reports serves it: does one run, with the outbox installed on its app?"


def _held(facts: Facts, instance: str) -> tuple[str, str]:
    row, now = facts.row, facts.now
    worker = next((one for one in facts.workers if str(one.instance) == instance), None)
    who = f"worker {instance if worker is None else worker.hostname}"
    if row.started_at is None:
        why = f"{who} has received it and not started it yet"
    else:
        why = f"{who} has been running it for {span(now - row.started_at)}"
    longer = row.lease_until is not None and row.lease_until - now > facts.run_lease
    lease = _lease(facts, "queue lease" if longer else "run lease")
    if worker is not None and worker.live:
        return why, f"its report moves it, and its beacons put off {lease}"
    seen = "is not known any more" if worker is None else f"was last seen {age(worker.last_seen_at, now)}"
    return f"{why}, and {seen}", f"where no worker is heard of, it is re-armed after {lease}"


def _lease(facts: Facts, kind: str) -> str:
    until = facts.row.lease_until
    if until is None:
        return f"the end of its {kind}"
    if until <= facts.now:
        return f"the end of its {kind}, which was {age(until, facts.now)}"
    return f"the end of its {kind}, {instant(until)} ({age(until, facts.now)})"


# -- ended --------------------------------------------------------------------------------------------------------


def _ended(facts: Facts) -> tuple[str, str | None]:
    row = facts.row
    when = "" if row.settled_at is None else f" {age(row.settled_at, facts.now)}"
    said = None if row.error is None else brief(row.error)
    if row.status is Status.DONE:
        return f"its task ended{when}" + ("" if said is None else f" ({said})"), None
    because = f"because {said or 'of a reason that was not told'}"
    if row.status is Status.CANCELLED:
        return f"it was cancelled{when} {because}", None
    return f"it failed{when} {because}", f"'outbox failed redrive {row.id}' runs it again"


# -- words --------------------------------------------------------------------------------------------------------


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
