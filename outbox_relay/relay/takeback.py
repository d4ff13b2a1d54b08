"""Take back messages that wait where they may not, or cannot, run: their rows are pending again, and placed anew.

A message is acknowledged first, and its row released then: whoever dies in between leaves a claim whose lease ends. The
other way round, both the message and the row's next one would run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from outbox_relay.core.placement import route_of_queue
from outbox_relay.core.row import Claim
from outbox_relay.core.takeback import is_misplaced
from outbox_relay.errors import PublishError, StoreAway, StoreError
from outbox_relay.publish.drain import Drain, can_drain
from outbox_relay.publish.peek import Depths
from outbox_relay.relay.outages import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from outbox_relay.core.directives import Directives
    from outbox_relay.core.processes import WorkerInfo
    from outbox_relay.publish.drain import Taken
    from outbox_relay.relay.parts import Parts
    from outbox_relay.relay.reading import Reading
    from outbox_relay.store.takeback import Takebacks

CHUNK = 500
QUEUES_AT_ONCE = 500
LONGEST_PAUSE = 300.0  # seconds between two looks while nothing that is looked for is there


@dataclass(slots=True)
class Job:
    """A queue that is being emptied. ``rows`` were released so far."""

    drain: Drain
    rows: int = 0


@dataclass(slots=True)
class Sorted:
    """What is taken out of a queue for good: messages whose rows go back, and those that their rows left behind."""

    mine: list[Taken] = field(default_factory=list)
    stale: list[Taken] = field(default_factory=list)


class Takeback:
    """The loop of a relay that takes messages back. Call :meth:`tick` again and again; it says when to call it next.

    ``woken`` is called when rows are due again.
    """

    def __init__(
        self,
        parts: Parts,
        takebacks: Takebacks,
        reading: Reading,
        *,
        woken: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._takebacks = takebacks
        self._reading = reading
        self._woken = woken
        self._clock = clock
        self._events = parts.events
        self._outage = Outage(parts.outages.voice(), "store")
        self._beat = parts.leases.heartbeat.total_seconds()
        self._possible = can_drain(parts.app)
        self._depths = Depths(parts.app)
        self._look_at = clock()
        self._pause = self._beat
        self._asked_at = float("-inf")
        self._asked: object = None
        self._queues: list[str] = []
        self._job: Job | None = None
        self._owed: list[Claim] = []  # acknowledged, and not released yet
        self._shared: set[str] = set()

    def tick(self) -> float:
        """Go one step. Return how many seconds the next one may wait."""
        if not self._possible:
            return LONGEST_PAUSE
        try:
            delay = self._step()
        except StoreAway as error:
            self._give_up()
            return self._outage.goes_on(error)
        except (StoreError, PublishError):
            # What cannot be read is not acted upon, and the sweep says so. Where it was the broker that went away, what
            # was not acknowledged is where it was.
            self._give_up()
            return self._beat
        self._outage.is_over()
        return delay

    def drain(self) -> None:
        """Give back what is in hand, and release what was acknowledged.

        Raises:
            StoreAway: the database is away; the leases of what is not released end by themselves.
        """
        self._stop()
        self._depths.close()
        self._release()

    def _step(self) -> float:
        self._release()
        if self._job is not None:
            self._go_on(self._job)
            return 0.0
        if self._queues:
            self._begin(self._queues.pop(0))
            return 0.0
        if (left := self._look_at - self._clock()) > 0:
            return left
        self._look_at = self._clock() + self._beat
        self._queues = self._find()
        return 0.0 if self._queues else self._beat

    def _look(self) -> tuple[Directives, list[WorkerInfo], set[str]]:
        """What is said, which workers are known, and which of these (instances) are not dead.

        A silent worker is a dead one only when beacons have been read without a gap for long enough.
        """
        directives, workers = self._takebacks.look()
        if self._knows_the_dead():
            return directives, workers, {str(one.instance) for one in workers if one.live}
        queues = {queue for one in workers for queue in one.queues}
        return self._with_doubt(directives, queues), workers, {str(one.instance) for one in workers}

    def _knows_the_dead(self) -> bool:
        return self._reading.lasts(self._parts.leases.patience)

    def _with_doubt(self, directives: Directives, queues: Collection[str]) -> Directives:
        """Take queues for live as long as nobody may be judged dead."""
        if self._knows_the_dead():
            return directives
        return replace(directives, live_queues=directives.live_queues.union(queues))

    # -- which queues -----------------------------------------------------------------------------------------------

    def _find(self) -> list[str]:
        """Look for queues with messages that are to be taken back.

        Where rows are is asked of the database only while there is reason to: a namespace is placed on nodes, or
        messages wait for a node that is dead; and, as long as nothing is found and nothing changes, with growing
        pauses.
        """
        directives, workers, live = self._look()
        dead = self._dead_queues(directives, workers)
        if not dead and not directives.placements:
            self._asked = None
            return []
        about = (dict(directives.placements), dead, live)
        if about != self._asked:
            self._asked, self._pause = about, self._beat
        elif self._clock() - self._asked_at < self._pause:
            return []
        self._asked_at = self._clock()
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        places = self._takebacks.whereabouts(directives.placements, dead)
        directives = self._with_doubt(directives, {one.queue for one in places})
        found = {
            one.queue for one in places if one.worker not in live and is_misplaced(one.route, one.queue, directives)
        }
        return [queue for queue in sorted(found) if queue in dead or self._waits(queue)]

    def _dead_queues(self, directives: Directives, workers: Iterable[WorkerInfo]) -> set[str]:
        """Queues of nodes in which messages wait and that no worker of the known ones serves any more.

        Those of a worker that has left in good order are not known; rows of placed namespaces tell of them.
        """
        served = {queue for worker in workers for queue in worker.queues if route_of_queue(queue) is not None}
        dead = sorted(served - directives.live_queues - self._shared)
        return {queue for queue in dead[:QUEUES_AT_ONCE] if self._waits(queue)}

    def _waits(self, queue: str) -> bool:
        if queue in self._shared:
            return False
        depth = self._depths.depth(queue)
        return depth is not None and depth.ready > 0

    # -- one queue --------------------------------------------------------------------------------------------------

    def _begin(self, queue: str) -> None:
        job = Job(Drain(self._parts.app, queue))
        if job.drain.open():
            self._job = job
        else:
            job.drain.give_back()

    def _go_on(self, job: Job) -> None:
        """Take the next messages of a queue: acknowledge, then release, what is to be taken back; hold the rest."""
        directives, _, live = self._look()
        directives = self._with_doubt(directives, {job.drain.queue})
        chunk = job.drain.take(CHUNK)
        if any(one.delivery is None for one in chunk):
            self._leave_alone(job.drain.queue)
            return
        sorted_ = self._sort(job.drain.queue, chunk, directives, live)
        if away := sorted_.mine + sorted_.stale:
            job.drain.acknowledge(away)
            self._events.emit("takeback.acknowledged", messages=len(away), queue=job.drain.queue)
            self._owed += [Claim(d.row_id, d.token) for one in sorted_.mine if (d := one.delivery) is not None]
            job.rows += len(sorted_.mine)
        if not job.drain.left or (job.drain.queue in directives.live_queues and not away):
            self._stop()  # at once: as long as the others are in hand, their queue looks empty
        self._release()

    def _sort(self, queue: str, chunk: Sequence[Taken], directives: Directives, live: set[str]) -> Sorted:
        result = Sorted()
        own = self._parts.queues.settlements.name
        ids = {one.delivery.row_id for one in chunk if one.delivery is not None and one.delivery.queue == own}
        rows = self._takebacks.addressees(ids) if ids else {}
        for one in chunk:
            delivery = one.delivery
            row = None if delivery is None or delivery.queue != own else rows.get(delivery.row_id)
            if row is None or delivery is None or row.ended:
                continue
            if row.token != delivery.token:
                result.stale.append(one)
            elif row.worker not in live and is_misplaced(row.route, queue, directives):
                result.mine.append(one)
        return result

    def _leave_alone(self, queue: str) -> None:
        """Somebody sends messages of his own to this queue: it is not the outbox's alone."""
        self._shared.add(queue)
        self._events.emit("takeback.shared", queue=queue)
        self._stop()

    def _give_up(self) -> None:
        self._queues.clear()
        self._stop()

    def _stop(self) -> None:
        """Be done with a queue: what is held goes back."""
        job, self._job = self._job, None
        if job is None:
            return
        try:
            job.drain.give_back()
        except PublishError:
            pass  # the connection has ended, so that the broker has them back
        finally:
            if job.rows:
                self._pause = self._beat
                self._events.emit("takeback.taken", rows=job.rows, queue=job.drain.queue)

    def _release(self) -> None:
        if self._owed:
            self._store.release(self._owed)
            self._owed = []
            self._store.reset_watermark()
            self._woken()
