"""What a relay sees of the queues that its rows wait in: the evidence for a row that nobody has reported on."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from outbox_relay.core.leases import Sight
from outbox_relay.errors import PublishError
from outbox_relay.publish.peek import PeekError
from outbox_relay.publish.reconnect import errand

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from datetime import datetime, timedelta

    from celery import Celery

    from outbox_relay.core.processes import WorkerInfo
    from outbox_relay.core.settlement import Delivery
    from outbox_relay.publish.peek import Depths

LOOKS_PER_LEASE = 20  # instants kept of a queue that is always empty, for each lease
QUEUES_AT_ONCE = 200
ASK_FOR = 1.0  # seconds that workers have to answer which queues they consume


class Watch:
    """Looks at queues, and remembers when each was seen empty while somebody consumed it."""

    def __init__(
        self,
        app: Celery,
        depths: Depths,
        queue_lease: timedelta,
        published_at: Callable[[Delivery], datetime | None],
    ) -> None:
        self._app = app
        self._depths = depths
        self._lease = queue_lease
        self._published_at = published_at
        self._drained: dict[str, deque[datetime]] = {}

    def look(self, queues: Iterable[str], now: datetime) -> None:
        """Look whether queues are empty and consumed. ``now`` is the database's clock, read before this call.

        Only for brokers that tell how many consumers a queue has.
        """
        with contextlib.suppress(PeekError):  # what could not be seen was not seen
            for queue in list(queues)[:QUEUES_AT_ONCE]:
                depth = self._depths.depth(queue)
                if depth is not None and depth.ready == 0 and depth.consumers:
                    self._remember(queue, now)
        self._forget(now)

    def _remember(self, queue: str, now: datetime) -> None:
        seen = self._drained.setdefault(queue, deque())
        if not seen or now - seen[-1] >= self._lease / LOOKS_PER_LEASE:
            seen.append(now)

    def _forget(self, now: datetime) -> None:
        oldest = now - 2 * self._lease
        for queue, seen in list(self._drained.items()):
            while seen and seen[0] < oldest:
                seen.popleft()
            if not seen:
                del self._drained[queue]

    def empty(self, queue: str) -> bool:
        """Whether nothing waits in ``queue``; a queue that is missing is empty."""
        try:
            depth = self._depths.depth(queue)
        except PeekError:
            return False
        return depth is None or depth.ready == 0

    def past(self, queues: Collection[str], workers: Iterable[WorkerInfo]) -> dict[str, Sight]:
        """What was seen of queues whose messages have expired since."""
        reported = _served(workers)
        return {
            queue: Sight(reported=queue in reported, drained_at=tuple(self._drained.get(queue, ()))) for queue in queues
        }

    def present(self, queues: Collection[str], workers: Iterable[WorkerInfo]) -> dict[str, Sight]:
        """Look at queues on a broker that keeps messages for ever."""
        reported = _served(workers)
        sights: dict[str, Sight] = {}
        consumed: Collection[str] | None = None
        for queue in queues:
            try:
                depth, head = self._depths.depth(queue), self._head(queue)
            except PeekError:
                continue
            if depth is None:
                continue
            taken = bool(depth.consumers) or queue in reported
            if depth.consumers is None and not taken:
                # Only the workers know, and any Celery worker answers, with or without the outbox.
                consumed = self._ask_workers() if consumed is None else consumed
                taken = queue in consumed
            sights[queue] = Sight(ready=depth.ready, consumed=taken, reported=queue in reported, head_published_at=head)
        return sights

    def _head(self, queue: str) -> datetime | None:
        head = self._depths.head(queue)
        return None if head is None else self._published_at(head)

    def _ask_workers(self) -> set[str]:
        try:
            with errand(self._app) as connection:
                answers = self._app.control.inspect(timeout=ASK_FOR, connection=connection).active_queues() or {}
        except PublishError:
            return set()  # nobody is known to consume anything
        return {queue["name"] for queues in answers.values() for queue in queues}


def _served(workers: Iterable[WorkerInfo]) -> set[str]:
    return {queue for worker in workers if worker.live for queue in worker.queues}
