"""Re-arm claims whose lease has ended, once it is known that nothing that would keep them is still on its way.

A relay first puts a marker on the settlement queue. When it has come back, everything that workers had reported before
it has been given to some relay; when all live relays have applied what they held by then, and reports were read without
a gap for a while, a lease that is over means something.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from outbox_relay.core.leases import Evidence, Judgement, judge, judge_gone
from outbox_relay.core.lifecycle import Event
from outbox_relay.errors import StoreAway
from outbox_relay.publish.envelope import report
from outbox_relay.publish.receipts import Outcome
from outbox_relay.relay.markers import Marker
from outbox_relay.relay.outages import LONGEST_PAUSE, Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from outbox_relay.core.processes import RelayInfo, WorkerInfo
    from outbox_relay.publish.receipts import Publisher
    from outbox_relay.relay.parts import Parts
    from outbox_relay.relay.reading import Reading
    from outbox_relay.relay.watch import Watch

BATCH = 500
CHECK = 0.1  # seconds between two looks whether a marker has come back
GIVE_UP_BEATS = 4
GIVE_UP_SECONDS = 2 * LONGEST_PAUSE  # another relay may have just begun to wait for its database
SETTLE_LOOP = "settle"


@dataclass(slots=True)
class Round:
    """One attempt to re-arm: its marker, who has to have applied what came before it, and what it is about."""

    marker: Marker
    begun: float
    relays: frozenset[UUID]
    orphaned: list[tuple[WorkerInfo, str]] = field(default_factory=list)


class Rearm:
    """The re-arming loop of a relay. Call :meth:`tick` again and again; it says when to call it next.

    ``hurry`` asks this relay's own settling loop to sign the register soon; ``woken`` is called when rows are due.
    """

    def __init__(
        self,
        parts: Parts,
        publisher: Publisher,
        watch: Watch,
        reading: Reading,
        *,
        hurry: Callable[[], None],
        woken: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._publisher = publisher
        self._watch = watch
        self._settings = parts.settings
        self._events = parts.events
        self._leases = parts.leases
        self._reading = reading
        self._hurry = hurry
        self._woken = woken
        self._clock = clock
        self._outage = Outage(parts.outages.voice(), "store")
        self._give_up_after = max(GIVE_UP_BEATS * self._leases.heartbeat.total_seconds(), GIVE_UP_SECONDS)
        self._due_at = clock()
        self._round: Round | None = None
        self._waits_for = ""
        self._seen_empty: dict[tuple[UUID, str], float] = {}
        self._buried: set[tuple[UUID, str]] = set()  # dead workers, by queue, whose rows were looked after

    def tick(self) -> float:
        """Go one step. Return how many seconds the next one may wait."""
        try:
            delay = self._step()
        except StoreAway as error:
            self._round = None
            self._due_at = self._clock()  # the next step asks the database again: a step without it proves nothing
            return self._outage.goes_on(error)
        self._outage.is_over()
        return delay

    def ask(self) -> None:
        """Do not wait for the next interval."""
        self._due_at = self._clock()

    def _step(self) -> float:
        if self._publisher.blocked:
            self._reading.breaks()  # the broker takes no beacons either: there is nothing to be read
        if self._round is None:
            if (left := self._due_at - self._clock()) > 0:
                return left
            self._due_at = self._clock() + self._settings.rearm_interval.total_seconds()
            self._round = self._begin()
        elif (reason := self._not_yet(self._round)) is None:
            finished, self._round = self._round, None
            self._judge(finished)
        elif self._clock() - self._round.begun > self._give_up_after:
            self._round = None
            self._wait(reason)
        return CHECK if self._round is not None else max(self._due_at - self._clock(), 0.0)

    def _reads_on(self) -> bool:
        return self._reading.lasts(self._leases.patience)

    def _wait(self, reason: str) -> None:
        if reason != self._waits_for:
            self._waits_for = reason
            self._events.emit("rearm.waits", reason=reason)

    # -- is it known that they are stale? ---------------------------------------------------------------------------

    def _begin(self) -> Round | None:
        """Look whether there is anything to judge, and send a marker."""
        in_flight = self._store.in_flight()
        if not in_flight.claimed:
            return None
        workers = self._store.workers(self._settings.worker_ttl)
        self._look_at_queues()
        orphaned = self._orphaned(workers)
        if not orphaned and not in_flight.stale:
            return None
        if not self._reads_on():
            self._wait("reports have not been read long enough without a gap")
            return None
        marker = Marker(self._parts.instance, uuid4())
        relays = frozenset(one.instance for one in self._store.relays() if _settles(one))
        message = report(0, self._parts.queues.settlements, marker.encode(), expiration=10 * self._leases.heartbeat)
        (receipt,) = self._publisher.publish([message], timeout=2.0)
        if receipt.outcome is not Outcome.CONFIRMED:
            self._reading.breaks()
            self._wait(f"the marker could not be sent: {receipt.detail}")
            return None
        self._hurry()
        return Round(marker, self._clock(), relays, orphaned)

    def _not_yet(self, round_: Round) -> str | None:
        """Say what is still to come before anybody may be judged; None where nothing is."""
        if not self._reads_on():
            return "reports have not been read long enough without a gap"
        relays = {one.instance: one for one in self._store.relays()}
        own = relays.get(self._parts.instance)
        if own is None or own.marker != round_.marker.id or own.marker_at is None:
            return "the marker has not come back"
        for instance in round_.relays | {self._parts.instance}:
            relay = relays.get(instance)
            if relay is None or not _settles(relay):  # what it held goes back to the queue, behind this marker
                return f"relay {instance} has gone in the meantime"
            if relay.applied_at is None or relay.applied_at < own.marker_at:
                if instance == self._parts.instance:
                    self._hurry()
                return f"relay {instance} has not applied all that it received"
        return None

    # -- what becomes of them ---------------------------------------------------------------------------------------

    def _judge(self, round_: Round) -> None:
        self._waits_for = ""
        workers = self._store.workers(self._settings.worker_ttl)
        stale = self._store.stale(BATCH)
        queues = {row.queue for row in stale if row.queue is not None and row.worker is None}
        expires = self._parts.message_life is not None
        evidence = Evidence(
            now=self._store.now(),
            leases=self._leases,
            message_life=self._parts.message_life,
            sights=self._watch.past(queues, workers) if expires else self._watch.present(queues, workers),
        )
        decide = partial(judge, evidence=evidence)
        self._until_done(lambda: self._store.rearm(decide, limit=BATCH))
        live = [one.instance for one in workers if one.live]
        for worker, queue in round_.orphaned:
            rearm = partial(
                self._store.rearm_queue, judge_gone, queue=queue, before=worker.last_seen_at, live=live, limit=BATCH
            )
            if self._until_done(rearm):
                self._buried.add((worker.instance, queue))
                self._seen_empty.pop((worker.instance, queue), None)

    def _until_done(self, rearm: Callable[[], Sequence[Judgement]]) -> bool:
        """Re-arm batch after batch; stop where this machine has slept meanwhile, and tell whether it has not."""
        while self._reads_on():
            judgements = rearm()
            self._tell(judgements)
            if len(judgements) < BATCH:
                return True
        return False

    def _tell(self, judgements: Sequence[Judgement]) -> None:
        events = Counter(one.event for one in judgements)
        failed = [one for one in judgements if one.event in (Event.VANISHED, Event.SILENT)]
        for one in failed:
            self._events.emit("rearm.failed", row_id=one.row_id, error=one.error)
        if failed:
            self._events.emit("rearm.failures", rows=len(failed), first=failed[0].row_id, error=failed[0].error)
        if events[Event.REARM]:
            self._events.emit("rearm.rearmed", rows=events[Event.REARM])
            self._store.reset_watermark()
            self._woken()

    # -- queues and workers -----------------------------------------------------------------------------------------

    def _look_at_queues(self) -> None:
        """Remember which queues are empty and consumed, while messages that may go silent are in them."""
        if self._parts.message_life is not None:
            now: datetime = self._store.now()
            self._watch.look(self._store.queues_in_flight(BATCH), now)

    def _orphaned(self, workers: Sequence[WorkerInfo]) -> list[tuple[WorkerInfo, str]]:
        """Dead workers and those of their queues that have been empty for two beacons.

        A message that left such a queue by then is in the hands of a worker that has said so since, or is lost.
        """
        known = {(one.instance, queue) for one in workers if not one.live for queue in one.queues}
        self._buried &= known
        for gone in self._seen_empty.keys() - known:
            del self._seen_empty[gone]
        ready = []
        beacons = 2 * self._leases.heartbeat.total_seconds()
        for worker in workers:
            for queue in () if worker.live else worker.queues:
                key = worker.instance, queue
                if key in self._buried:
                    continue
                if not self._watch.empty(queue):
                    self._seen_empty.pop(key, None)  # a relay that takes messages back had the others in hand
                elif self._clock() - self._seen_empty.setdefault(key, self._clock()) >= beacons:
                    ready.append((worker, queue))
        return ready


def _settles(relay: RelayInfo) -> bool:
    return relay.live and SETTLE_LOOP in relay.loops
