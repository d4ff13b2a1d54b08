"""What each end of a task in Celery means for its row.

Everything here is asked after Celery has done its own part: only then is it known whether the message really went
back to the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, Terminated

from outbox_relay.core.settlement import Retried, Settlement
from outbox_relay.errors import AlreadyDone, RunAgain
from outbox_relay.worker.retries import rider_of, to_retried

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outbox_relay.worker.desk import Job
    from outbox_relay.worker.retries import Caught

EVERYTHING = "*"


def of_success(job: Job, request: Any, outcome: Any) -> Settlement:
    """The pool says that the task returned. ``outcome`` is its ``(failed, text of the result, runtime)``."""
    rider = rider_of(outcome[1])
    if rider is not None and rider.retry is not None:
        return Settlement.retry(job.delivery, job.task_id, to_retried(rider.retry, request))
    if not hasattr(request.kwargs, "items"):  # Celery takes this for a success, and runs nothing
        return Settlement.failed(job.delivery, job.task_id, "InvalidTaskError: the keyword arguments are no mapping")
    return Settlement.done(job.delivery, job.task_id)


def of_failure(job: Job, request: Any, exc_info: Any, captured: Caught | None, default: tuple[str, ...]) -> Settlement:
    """The pool says that the task did not return. ``captured`` is a retry that this process itself was about to send.

    ``default`` names the exceptions of ``outbox_retry_for``, for tasks that name none of their own.
    """
    error = unwrap(exc_info.exception)
    rider = rider_of(exc_info)
    retry = captured if captured is not None or rider is None else rider.retry
    if retry is not None:
        return Settlement.retry(job.delivery, job.task_id, to_retried(retry, request), describe(error))
    if isinstance(error, Retry):
        return _of_bare_retry(job, request, error)
    if isinstance(error, AlreadyDone):
        return Settlement.done(job.delivery, job.task_id, f"skipped: {error}")
    if isinstance(error, RunAgain):
        return Settlement.again(job.delivery, job.task_id, describe(error))
    if isinstance(error, Ignore):
        return Settlement.done(job.delivery, job.task_id, f"ignored: {error}")
    if request._already_revoked:
        return Settlement.cancelled(job.delivery, job.task_id, "terminated")
    if isinstance(error, (WorkerLostError, Terminated, SystemExit, KeyboardInterrupt)):
        return of_loss(job, request, describe(error))
    if request.outbox_returned:
        return Settlement.requeued(job.delivery, job.task_id)
    if isinstance(error, Reject) and error.requeue:  # acknowledged already, so the broker did not take it back
        return Settlement.lost(job.delivery, job.task_id, describe(error))
    lineage = rider.lineage if rider is not None and rider.lineage else lineage_of(type(error))
    text = describe(error, exc_info.traceback)
    if not request.chord and matches(lineage, names_of(request.task, default)):
        return Settlement.again(job.delivery, job.task_id, text)
    return Settlement.failed(job.delivery, job.task_id, text)


def of_loss(job: Job, request: Any, why: str) -> Settlement:
    """The process that ran the task is gone, or is going, before its end."""
    if request.outbox_returned or not request.acknowledged:
        return Settlement.requeued(job.delivery, job.task_id)
    return Settlement.lost(job.delivery, job.task_id, why)


def of_unknown(job: Job, error: BaseException) -> Settlement:
    return Settlement.unknown(job.delivery, job.task_id, f"no task {error} is registered in this worker")


def of_invalid(job: Job, error: BaseException, default: tuple[str, ...]) -> Settlement:
    """A message that no task could be made of."""
    if matches(lineage_of(type(error)), default):
        return Settlement.again(job.delivery, job.task_id, describe(error))
    return Settlement.failed(job.delivery, job.task_id, describe(error))


def of_revoke(job: Job, reason: str) -> Settlement:
    return Settlement.cancelled(job.delivery, job.task_id, reason)


def of_acknowledgement(job: Job) -> Settlement:
    """A strategy that runs tasks in a way of its own says no more than that it is through with the message."""
    return Settlement.done(job.delivery, job.task_id, "acknowledged by the task's own strategy")


def of_reject(job: Job, requeue: bool) -> Settlement:
    """Celery turned the message away before it ran."""
    if requeue:
        return Settlement.requeued(job.delivery, job.task_id)
    return Settlement.failed(job.delivery, job.task_id, "the worker rejected the message")


def of_release(job: Job) -> Settlement:
    return Settlement.released(job.delivery, job.task_id)


def of_departure(job: Job) -> Settlement:
    """The worker goes, and has not heard of this job's end."""
    if not job.started:
        return of_release(job)
    if job.early:
        return Settlement.lost(job.delivery, job.task_id, "the worker was shut down while the task ran")
    return Settlement.requeued(job.delivery, job.task_id)


def _of_bare_retry(job: Job, request: Any, error: Retry) -> Settlement:
    """A Retry without a message that was caught: raised by hand, or sent by a protocol that carries no headers."""
    headers = request.message.headers
    if "task" not in headers:
        return Settlement.requeued(job.delivery, job.task_id)
    when = error.when if isinstance(error.when, (int, float)) else request.task.default_retry_delay
    retried = Retried(delay=float(when or 0), retries=int(headers.get("retries") or 0) + 1)
    return Settlement.retry(job.delivery, job.task_id, retried, describe(error))


# -- exceptions, by name ------------------------------------------------------------------------------------------


def unwrap(error: Any) -> BaseException:
    """Take an exception out of what billiard carries it in."""
    while isinstance(error, ExceptionWithTraceback):
        error = error.exc
    return error if isinstance(error, BaseException) else RuntimeError(repr(error))


def describe(error: BaseException, traceback: Any = None) -> str:
    """Write an exception as a row keeps it: its class and message first, then its traceback."""
    kind = type(error)
    name = getattr(error, "exc_cls_name", None)  # an exception that could not be pickled
    name = name or (kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001 - the user's own __str__
        message = f"<its message cannot be shown: {type(broken).__name__}>"
    head = f"{name}: {message}" if message else str(name)
    return f"{head}\n{traceback}" if traceback else head


def lineage_of(kind: type[BaseException]) -> tuple[str, ...]:
    """Return the names that an exception class goes by: its own and its bases', bare and with their modules."""
    names: list[str] = []
    for one in kind.__mro__:
        names += (one.__qualname__, f"{one.__module__}.{one.__qualname__}")
    return tuple(names)


def names_of(task: Any, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the exceptions that ``outbox_retry_for`` names for a task: the task's own, else the app's."""
    own = getattr(task, "outbox_retry_for", None)
    if own is None:
        return default
    given = own if isinstance(own, (list, tuple, set, frozenset)) else (own,)
    return tuple(f"{one.__module__}.{one.__qualname__}" if isinstance(one, type) else str(one) for one in given)


def matches(lineage: Iterable[str], named: Iterable[str]) -> bool:
    named = set(named)
    return EVERYTHING in named or not named.isdisjoint(lineage)
