"""The one mechanism that catches every end of a task, in the worker's main process.

Celery derives a class from each task's own ``Request`` class, with an ``on_success`` and an ``execute_using_pool``
that never call ``super()``. :class:`Settling` is mixed in under that class, and wraps those two as the class is made
(``__init_subclass__``); all other ends are methods that do come through here. A request of a message without the
outbox's header does exactly what it did.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from kombu.asynchronous import get_event_loop

from outbox_relay.publish.capture import diverted
from outbox_relay.worker import outcomes
from outbox_relay.worker.retries import RetrySink
from outbox_relay.worker.warnings import has_own_strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.worker.desk import Desk, Job

logger = get_logger(__name__)
AT_ONCE = 0.005  # seconds


def keep_awake() -> None:
    """Let the worker's event loop come round at once.

    A message that is refused as it is received may be acknowledged only when the loop has waited for something else,
    a second or two: with a prefetch count of one, a backlog of revoked tasks would hold up all that is behind it.
    """
    if (loop := get_event_loop()) is not None:
        loop.call_later(AT_ONCE, _nothing)


def _nothing() -> None:
    pass


class Settling:
    """Mixed into a Request class: tells the desk how its task ended, after Celery has done its own part."""

    outbox_desk: Desk
    outbox_job: Job | None = None
    outbox_returned = False  # the broker has the message again
    outbox_ending = False  # Celery is in the middle of ending the task
    outbox_given = False  # the pool has it

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, wrap in (("on_success", _settling_success), ("execute_using_pool", _settling_execution)):
            if name in cls.__dict__:
                setattr(cls, name, wrap(cls.__dict__[name]))

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)  # type: ignore[call-arg]  # the Request class that this is mixed into
        self.outbox_job = self.outbox_desk.receive(message)

    # -- what the pool says ------------------------------------------------------------------------------------------

    def on_accepted(self, pid: Any, time_accepted: Any) -> None:
        job = self.outbox_job
        if job is not None:
            self.outbox_desk.start(job, early=not self.task.acks_late)  # type: ignore[attr-defined]
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]

    def on_success(self, outcome: Any, **kwargs: Any) -> Any:
        return _succeed(self, super().on_success, outcome, kwargs)  # type: ignore[misc]

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        job = self.outbox_job
        if job is None:
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]
        sink = self._retry_of_lost_worker(exc_info)
        sending: AbstractContextManager[None] = nullcontext() if sink is None else diverted(sink)
        self.outbox_ending = True
        try:
            with sending:
                return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]
        except MemoryError:
            # Celery ends the worker now. A message that is still the broker's would end the next one, and so on.
            self.acknowledge()  # type: ignore[attr-defined]
            raise
        finally:
            self.outbox_ending = False
            caught = None if sink is None else sink.caught
            desk = self.outbox_desk
            desk.end(job, outcomes.of_failure, self, exc_info, caught, desk.retry_for)

    def on_timeout(self, soft: bool, timeout: Any) -> Any:
        job = self.outbox_job
        if job is None or soft:
            return super().on_timeout(soft, timeout)  # type: ignore[misc]
        self.outbox_ending = True
        try:
            return super().on_timeout(soft, timeout)  # type: ignore[misc]
        finally:
            self.outbox_ending = False
            exc_info = _as_exc_info(TimeLimitExceeded(timeout))
            self.outbox_desk.end(job, outcomes.of_failure, self, exc_info, None, self.outbox_desk.retry_for)

    def _retry_of_lost_worker(self, exc_info: Any) -> RetrySink | None:
        """What catches the retry that this process sends where a task has ``retry_on_worker_lost``."""
        request: Any = self
        lost = isinstance(outcomes.unwrap(exc_info.exception), (WorkerLostError, SystemExit))
        if lost and getattr(request.task, "retry_on_worker_lost", False):  # Celery 5.7 and newer
            return RetrySink(request.app, request.id, int(request.request_dict.get("retries") or 0))
        return None

    # -- what Celery does without the pool ---------------------------------------------------------------------------

    def _announce_revoked(self, reason: str, *args: Any, **kwargs: Any) -> Any:
        before, self.outbox_ending = self.outbox_ending, True
        try:
            return super()._announce_revoked(reason, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.outbox_ending = before
            if self.outbox_job is not None:
                self.outbox_desk.end(self.outbox_job, outcomes.of_revoke, reason)
                keep_awake()

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> Any:
        if self.outbox_job is not None:
            self.outbox_job.cancelled = True  # no end yet: the task may still succeed
        return super()._announce_cancelled(*args, **kwargs)  # type: ignore[misc]

    def reject(self, requeue: bool = False) -> Any:
        taken = not self.acknowledged  # type: ignore[attr-defined]
        result = super().reject(requeue=requeue)  # type: ignore[misc]
        if taken and requeue:
            self.outbox_returned = True
        if taken and self.outbox_job is not None and not self.outbox_ending:
            self.outbox_desk.end(self.outbox_job, outcomes.of_reject, requeue)
        return result

    # -- what goes wrong around the task -----------------------------------------------------------------------------

    def outbox_broken(self, error: BaseException) -> None:
        """The pool's own machinery raised, and nobody else will end this task: it would be run again for ever."""
        job, request = self.outbox_job, self
        if job is None or not job.open:
            return
        refused = getattr(request, "_terminate_on_ack", None) is not None and isinstance(error, NotImplementedError)
        if not refused:
            logger.error("Task %s[%s] broke its pool: %r", request.name, request.id, error, exc_info=error)  # type: ignore[attr-defined]
        try:
            self.acknowledge()  # type: ignore[attr-defined]
        finally:
            if refused:  # this pool cannot terminate a task, and has not run it
                self.outbox_desk.end(job, outcomes.of_revoke, "terminated")
            else:
                exc_info = _as_exc_info(error)
                self.outbox_desk.end(job, outcomes.of_failure, self, exc_info, None, self.outbox_desk.retry_for)


def _settling_success(inner: Callable[..., Any]) -> Callable[..., Any]:
    def on_success(self: Settling, outcome: Any, **kwargs: Any) -> Any:
        return _succeed(self, inner.__get__(self), outcome, kwargs)

    return on_success


def _succeed(request: Settling, inner: Callable[..., Any], outcome: Any, kwargs: dict[str, Any]) -> Any:
    job = request.outbox_job
    if job is None:
        return inner(outcome, **kwargs)
    if isinstance(outcome, ExceptionInfo):  # a thread's SystemExit: Celery would take it for a result, and fail on it
        return request.on_failure(outcome)
    try:
        return inner(outcome, **kwargs)
    finally:
        if job.open:
            request.outbox_desk.end(job, outcomes.of_success, request, outcome)


def _settling_execution(inner: Callable[..., Any]) -> Callable[..., Any]:
    def execute_using_pool(self: Settling, pool: Any, **kwargs: Any) -> Any:
        job = self.outbox_job
        if job is None:
            return inner(self, pool, **kwargs)
        self.outbox_given = True
        try:
            result = inner(self, pool, **kwargs)
        except (TaskRevokedError, MemoryError):
            raise
        except Exception as error:
            if not job.open:
                raise
            self.outbox_broken(error)  # a pool that runs tasks in this very call: it would take the worker down
            return None
        future = getattr(result, "f", None)
        if future is not None:  # a thread pool keeps what its callbacks raise, and tells nobody
            future.add_done_callback(lambda done: _look_at(self, done))
        elif hasattr(result, "link_exception"):  # gevent: as before
            result.link_exception(lambda ended: self.outbox_broken(ended.exception))
        return result

    return execute_using_pool


def _look_at(request: Settling, future: Any) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        request.outbox_broken(error)


def _as_exc_info(error: BaseException) -> ExceptionInfo:
    return ExceptionInfo((type(error), error, error.__traceback__))


class SettlingByHand(Settling):
    """For a task with a strategy of its own, which may never give a request to the pool (celery-batches does not).

    The last that is heard of such a request is its acknowledgement: then it is done.
    """

    def acknowledge(self) -> Any:
        job, ends = self.outbox_job, not (self.outbox_given or self.outbox_ending)
        result = super().acknowledge()  # type: ignore[misc]
        if job is not None and ends:
            self.outbox_desk.end(job, outcomes.of_acknowledgement)
        return result


def adopt(task: Any, desk: Desk, known: dict[Any, Any]) -> None:
    """Give a task a Request class that settles; ``known`` remembers the classes that were made, by their base."""
    base = symbol_by_name(task.Request)
    while issubclass(base, Settling):  # a worker before this one, in the same process
        base = base.outbox_base
    mixin = SettlingByHand if has_own_strategy(task) else Settling
    if (mixin, base) not in known:
        known[mixin, base] = type("Request", (mixin, base), {"outbox_desk": desk, "outbox_base": base})
    task.Request = known[mixin, base]
