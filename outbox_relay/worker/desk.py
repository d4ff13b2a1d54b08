"""What a worker has in its hands: each delivery of a row, from its receipt to the one report about its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from outbox_relay.core.beacon import Held, HeldState
from outbox_relay.core.settlement import HEADER, Delivery, Settlement
from outbox_relay.publish.queues import SETTLEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.events import Events
    from outbox_relay.worker.reporter import Reporter


def delivery_of(message: Any) -> Delivery | None:
    """Read the ``x-outbox`` header of a broker message; None where the message is not a row's."""
    headers = message.headers
    if not isinstance(headers, dict) or HEADER not in headers:
        return None
    delivery = Delivery.parse(headers[HEADER])
    return delivery if delivery is not None and delivery.queue.startswith(SETTLEMENTS) else None


def task_id_of(message: Any) -> str:
    """Return the id of a message's task, also where the message is not one that Celery can read."""
    return str(message.headers.get("id") or message.properties.get("correlation_id") or "")


class Job:
    """One delivery of a row to this worker."""

    __slots__ = ("_ticket", "announced", "cancelled", "delivery", "early", "since", "started", "task_id")

    def __init__(self, delivery: Delivery, task_id: str, now: float) -> None:
        self.delivery = delivery
        self.task_id = task_id
        self.since = now
        self.started = False
        self.early = False
        self.announced = False
        self.cancelled = False
        self._ticket = [None]

    @property
    def open(self) -> bool:
        """Whether its end has not been reported yet."""
        return bool(self._ticket)

    def close(self) -> bool:
        """Take the right to report the end. Only one caller gets it, whichever thread it is in."""
        try:
            self._ticket.pop()
        except IndexError:
            return False
        return True

    def held(self, now: float) -> Held:
        running = HeldState.RUNNING_EARLY if self.early else HeldState.RUNNING_LATE
        state = running if self.started else HeldState.RESERVED
        return Held(self.delivery.row_id, self.delivery.token, state, max(now - self.since, 0.0))


class Desk:
    """Every open job of a worker process, and the one way out for each: a settlement, handed to the reporter.

    Its callers are Celery's own callbacks, in whatever thread the pool calls them. Nothing that goes wrong here gets
    out to them.
    """

    def __init__(
        self,
        reporter: Reporter,
        events: Events,
        *,
        retry_for: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.retry_for = retry_for
        self._reporter = reporter
        self._events = events
        self._clock = clock
        self._jobs: dict[Job, None] = {}

    def receive(self, message: Any) -> Job | None:
        """Take a message in hand, where it is a row's."""
        try:
            delivery = delivery_of(message)
            if delivery is None:
                return None
            job = Job(delivery, task_id_of(message), self._clock())
        except Exception as error:  # noqa: BLE001 - the task must run whatever is wrong with its header
            self.fault(error)
            return None
        self._jobs[job] = None
        return job

    def start(self, job: Job, *, early: bool) -> None:
        """The pool has begun to run the job; ``early``: it is acknowledged already."""
        job.since, job.early, job.started = self._clock(), early, True
        if job.open:
            self._jobs[job] = None  # it may have been forgotten when the connection to the broker was lost

    def end(self, job: Job, decide: Callable[..., Settlement], *about: Any) -> None:
        """Report the end of a job as ``decide(job, *about)`` sees it, unless it has been reported before."""
        if not job.close():
            return
        self._jobs.pop(job, None)
        try:
            self._reporter.report(decide(job, *about))
        except Exception as error:  # noqa: BLE001 - the task's result and acknowledgement must not suffer
            self.fault(error)

    def end_unrun(self, message: Any, decide: Callable[..., Settlement], *about: Any) -> None:
        """Report a message that never became a task, or whose job nobody can point to any more."""
        try:
            delivery = delivery_of(message)
        except Exception as error:  # noqa: BLE001 - as above
            self.fault(error)
            return
        if delivery is not None:
            same = [job for job in list(self._jobs) if job.delivery.token == delivery.token and not job.started]
            self.end(same[0] if same else Job(delivery, task_id_of(message), self._clock()), decide, *about)

    def forget_returned(self) -> None:
        """The connection to the broker was lost: what had not started, or was cancelled for it, is the broker's again.

        It may be another worker's next; were it still held here, its lease would outlive that one.
        """
        for job in list(self._jobs):
            if not job.started or (job.cancelled and not job.early):
                self._jobs.pop(job, None)

    def open_jobs(self) -> list[Job]:
        return list(self._jobs)

    def held(self, queue: str) -> tuple[Held, ...]:
        """What is in hand of the outbox that reads the settlement queue ``queue``."""
        now = self._clock()
        return tuple(job.held(now) for job in list(self._jobs) if job.delivery.queue == queue)

    def newly_running(self, older_than: float) -> dict[str, tuple[Held, ...]]:
        """Jobs that only this worker has, by settlement queue, each told once: the broker cannot bring them back.

        What has run for less than ``older_than`` seconds may be over before anybody reads of it, and is left for later.
        """
        now = self._clock()
        news: dict[str, list[Held]] = {}
        for job in list(self._jobs):
            if job.early and not job.announced and now - job.since >= older_than:
                job.announced = True
                news.setdefault(job.delivery.queue, []).append(job.held(now))
        return {queue: tuple(held) for queue, held in news.items()}

    def fault(self, error: BaseException) -> None:
        self._events.emit("worker.fault", error=repr(error))
