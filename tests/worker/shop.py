"""The app that the worker tests run: ordinary Celery tasks, and one task a way to end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.worker.request import Request, create_request_cls
from celery.worker.strategy import default as default_strategy

from outbox_relay.errors import AlreadyDone
from outbox_relay.outbox import Outbox
from outbox_relay.staging.once import RepeatedRun, SkippedRun

if TYPE_CHECKING:
    from collections.abc import Callable

app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.update(
    outbox_enabled=os.environ.get("SHOP_ENABLED", "1") == "1",
    outbox_heartbeat=float(os.environ.get("SHOP_HEARTBEAT", "1")),
    outbox_worker_ttl=60,
    outbox_drain_timeout=float(os.environ.get("SHOP_DRAIN", "20")),
    outbox_retry_for=["NamedForAllError"],
    task_acks_late=os.environ.get("SHOP_LATE") == "1",
    task_reject_on_worker_lost=os.environ.get("SHOP_REJECT_LOST") == "1",
    result_backend=os.environ.get("SHOP_RESULTS") or None,
    worker_soft_shutdown_timeout=float(os.environ.get("SHOP_SOFT", "0")),
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    worker_hijack_root_logger=False,
    broker_transport_options={"polling_interval": 0.05} if os.environ["SHOP_BROKER"].startswith("embedded") else {},
)
outbox = Outbox(app)
logger = get_logger(__name__)
notes = Path(os.environ.get("SHOP_NOTES", "/nonexistent"))


def note(text: str) -> None:
    """Leave a line that the test can wait for."""
    with (notes / "ran").open("a") as file:
        file.write(text + "\n")


class NamedForAllError(Exception):
    pass


class NamedForOneError(Exception):
    pass


class SubError(NamedForOneError):
    pass


class UnpicklableError(NamedForOneError):
    def __init__(self, first: str, second: str) -> None:
        super().__init__("cannot be built again")
        self.what = lambda: (first, second)


@app.task
def add(x: int = 1, y: int = 2) -> int:
    return x + y


@app.task
def fail(text: str = "no such luck") -> None:
    raise ValueError(text)


@app.task
def ignore() -> None:
    raise Ignore("nothing to do")


@app.task
def reject(requeue: bool = False) -> None:
    once = notes / "rejected"
    if requeue and once.exists():
        return
    if requeue:
        once.touch()
    raise Reject("not mine", requeue=requeue)


@app.task(autoretry_for=(Exception,))
def skipped() -> None:
    raise SkippedRun("row 1 has committed its effects already")


@app.task(autoretry_for=(Exception,))
def met_another_run() -> None:
    raise RepeatedRun("another run of row 1 was committing")


@app.task
def already_done() -> None:
    raise AlreadyDone("said by the task itself")


@app.task(bind=True)
def replaced(self: Task) -> None:
    raise self.replace(add.si(1, 1))


@app.task
def named_for_all() -> None:
    raise NamedForAllError("again, please")


@app.task(outbox_retry_for=(NamedForOneError,))
def named_for_one(kind: str = "sub") -> None:
    if kind == "sub":
        raise SubError("a subclass counts")
    if kind == "unpicklable":
        raise UnpicklableError("a", "b")
    raise NamedForAllError("the task's own list replaces the app's")


@app.task(bind=True, max_retries=3, default_retry_delay=7)
def again(self: Task, how: str = "plain", **kwargs: object) -> str:
    if how == "plain":
        raise self.retry()
    if how == "countdown":
        raise self.retry(countdown=90)
    if how == "args":
        raise self.retry(args=("countdown",), kwargs={"note": "naïve"}, countdown=0)
    if how == "queue":
        raise self.retry(queue="elsewhere", countdown=1)
    if how == "headers":
        raise self.retry(headers={"x-mine": "yes"}, countdown=1)
    if how == "priority":
        raise self.retry(priority=4, countdown=1)
    if how == "exc":
        raise self.retry(exc=ValueError("why"), countdown=1)
    if how == "no_throw":
        self.retry(throw=False, countdown=2)
        return "returned all the same"
    if how == "no_throw_fail":
        self.retry(throw=False, countdown=2)
        raise ValueError("failed all the same")
    if how == "swallowed":
        try:
            self.retry(countdown=2)
        except Retry:
            return "swallowed"
    if how == "by_hand":
        raise Retry("by hand", when=5)
    if how == "used_up":
        raise self.retry(max_retries=0)
    return "unknown"


@app.task(bind=True, autoretry_for=(ValueError,), retry_backoff=3, retry_jitter=False)
def auto(self: Task) -> None:
    raise ValueError("again by itself")


@app.task(bind=True)
def nested(self: Task) -> int:
    """Another task's retry inside this one is not this one's."""
    again.apply(args=("plain",), retries=3)
    return 1


@app.task(time_limit=1)
def too_long() -> None:
    time.sleep(60)


@app.task(soft_time_limit=1)
def softly_too_long() -> None:
    time.sleep(60)


@app.task
def die(how: str = "exit") -> None:
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def out_of_memory() -> None:
    raise MemoryError("as if")


@app.task
def leave() -> None:
    sys.exit(1)


@app.task
def nap(seconds: float = 3, name: str = "nap") -> None:
    note(f"{name} started")
    time.sleep(seconds)
    note(f"{name} ended")


class Stubborn(Task):
    """A hook of the user's that raises."""

    def on_failure(self, *args: object) -> None:
        raise RuntimeError("the hook is broken")


@app.task(base=Stubborn)
def broken_hook() -> None:
    raise ValueError("first")


class Calling(Task):
    def __call__(self, *args: object, **kwargs: object) -> object:
        note("called")
        return self.run(*args, **kwargs)


@app.task(base=Calling)
def called() -> None:
    pass


class OwnRequest(Request):
    __slots__ = ()

    def on_failure(self, *args: object, **kwargs: object) -> object:
        note("own request")
        return super().on_failure(*args, **kwargs)


@app.task(Request=OwnRequest)
def own_request() -> None:
    raise ValueError("seen by the user's own class")


@app.task(Request="tests.worker.shop:OwnRequest")
def own_request_by_name() -> None:
    raise ValueError("seen by the user's own class")


@app.task
def sends_more() -> None:
    add.delay(2, 2)


@app.task
def die_once() -> None:
    once = notes / "died"
    if not once.exists():
        once.touch()
        os._exit(3)


@app.task(acks_late=True, acks_on_failure_or_timeout=False)
def fail_unacknowledged() -> None:
    raise ValueError("and the message is rejected")


@app.task(acks_late=True, acks_on_failure_or_timeout=False, time_limit=1)
def too_long_once() -> None:
    """Its message goes back to the broker at the limit."""
    once = notes / "too_long"
    if not once.exists():
        once.touch()
        time.sleep(60)


@app.task(retry_on_worker_lost=True, default_retry_delay=9)
def die_and_be_retried() -> None:
    os._exit(3)


@app.task(bind=True, retry_on_worker_lost=True, max_retries=0)
def die_for_good(self: Task) -> None:
    os._exit(3)


@app.task(rate_limit="2/s")
def slow_lane() -> None:
    pass


@app.task(rate_limit="1/h")
def slowest_lane() -> None:
    pass


def counting(task: Task, app: Celery, consumer: Any) -> Callable[..., Any]:
    """A strategy of the user's own around Celery's."""
    inner = default_strategy(task, app, consumer)

    def on_message(*args: Any, **kwargs: Any) -> Any:
        note("counted")
        return inner(*args, **kwargs)

    return on_message


@app.task(Strategy="tests.worker.shop:counting")
def counted() -> None:
    pass


@app.task(Strategy="tests.worker.shop:counting")
def counted_fail() -> None:
    raise ValueError("also seen through a strategy")


class InBatches(Task):
    """What celery-batches does with requests: they are collected, and acknowledged; the pool gets none of them."""

    typing = False
    size = 2

    def Strategy(self, task: Task, app: Celery, consumer: Any) -> Callable[..., Any]:  # noqa: N802 - Celery's name
        held: list[Request] = []
        make = create_request_cls(symbol_by_name(task.Request), task, consumer.pool, consumer.hostname, None, app=app)

        def flush(requests: list[Request]) -> None:
            def acknowledge(*_: Any) -> None:
                for request in requests:
                    request.acknowledge()

            late, early = (acknowledge, nothing) if task.acks_late else (nothing, acknowledge)
            ids = [request.id for request in requests]
            consumer.pool.apply_async(run_batch, (self.name, ids), callback=late, accept_callback=early)

        def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **_: Any) -> None:
            held.append(
                make(
                    message, on_ack=ack, on_reject=reject, app=app, hostname=consumer.hostname, eventer=None, task=task,
                    body=message.body, headers=message.headers, decoded=False, utc=True,
                    connection_errors=consumer.connection_errors,
                )
            )  # fmt: skip
            if len(held) == self.size:
                requests = held[:]
                held.clear()
                flush(requests)

        return on_message


def nothing(*_: Any) -> None:
    pass


def breaking(task: Task, app: Celery, consumer: Any) -> Callable[..., Any]:
    """A strategy that acknowledges a message, or not, and breaks."""

    def on_message(message: Any, body: Any, ack: Any, *_: Any, **__: Any) -> None:
        if message.headers["argsrepr"] == "('acknowledged',)":
            ack(logger, consumer.connection_errors)
        raise ValueError("the strategy is broken")

    return on_message


@app.task(Strategy="tests.worker.shop:breaking")
def never_run(what: str) -> None:
    pass


def run_batch(name: str, ids: list[str]) -> None:
    app.tasks[name].run(ids)


@app.task(base=InBatches)
def batched(ids: list[str]) -> None:
    note(f"batch of {len(ids)}")


@app.task
def look_at_yourself() -> None:
    names = [thread.name for thread in threading.enumerate() if "outbox" in thread.name]
    note(f"threads: {names}")
    request = app.tasks["tests.worker.shop.add"].Request
    note(f"request: {request if isinstance(request, str) else request.__module__}".partition(":Request")[0])


class DiesWhenDone(Task):
    def on_success(self, *args: object) -> None:
        os._exit(4)


@app.task(base=DiesWhenDone)
def dies_when_done() -> int:
    return 1
