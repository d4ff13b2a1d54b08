"""One way of handing tasks over, in a process of its own: ``python -m benchmarks.sender MODE COUNT``.

Prints one JSON object: the seconds that the calls took, and, where asked for, the moment of each. Before the clock
starts, each way has been warmed up, and what its start has left is collected: that costs a young process more than an
old one.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from benchmarks.shop import PAD, QUEUE, app, noop

if TYPE_CHECKING:
    from collections.abc import Callable

BULK = 1_000  # rows of one transaction, where they are staged in bulk
ORDERS = sa.Table("bench_order", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True))


def send_task(count: int) -> dict[str, Any]:
    """What a shop does without an outbox."""
    app.send_task("bench.noop", args=(-1, PAD), queue="warm")
    gc.collect()
    begin, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        app.send_task("bench.noop", args=(number, PAD), queue=QUEUE)
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}


def apply_async(count: int) -> dict[str, Any]:
    app.send_task("bench.noop", args=(-1, PAD), queue="warm")
    began_at, begin = time.time(), time.perf_counter()
    for number in range(count):
        noop.apply_async((number, PAD))
    return {"seconds": time.perf_counter() - begin, "began_at": began_at}


def engine() -> sa.Engine:
    return sa.create_engine(os.environ["BENCH_DATABASE"], connect_args={"application_name": "bench"})


def stage(count: int) -> dict[str, Any]:
    """One call in a transaction that writes an order. What the call adds is counted; transaction and order are not."""
    bind, seconds, cpu = engine(), 0.0, 0.0
    ORDERS.metadata.create_all(bind)
    for number in range(-50, count):
        if number == 0:
            gc.collect()
        with Session(bind) as session, session.begin():
            session.execute(sa.insert(ORDERS).values(number=number))
            begin, used = time.perf_counter(), time.process_time()
            app.outbox.stage(session, noop.s(number, PAD))
            if number >= 0:
                seconds += time.perf_counter() - begin
                cpu += time.process_time() - used
    return {"seconds": seconds, "cpu": cpu}


def stage_many(count: int) -> dict[str, Any]:
    """In bulk; transactions and commits are counted."""
    return _in_bulk(count, BULK)


def stage_many_once(count: int) -> dict[str, Any]:
    """In one call and transaction, from a generator; its commit is counted."""
    return _in_bulk(count, count)


def _in_bulk(count: int, size: int) -> dict[str, Any]:
    bind = engine()
    with Session(bind) as session:  # connects, prepares and rolls back
        app.outbox.stage_many(session, [noop.s(-1, PAD) for _ in range(BULK)])
    gc.collect()
    began_at, begin, cpu = time.time(), time.perf_counter(), time.process_time()
    for first in range(0, count, size):
        with Session(bind) as session, session.begin():
            numbers = range(first, min(first + size, count))
            app.outbox.stage_many(session, (noop.s(number, PAD) for number in numbers))
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu, "began_at": began_at}


def stage_at_once(count: int) -> dict[str, Any]:
    """All rows in one transaction, so that all are due at one moment; ``began_at`` is just before its commit."""
    with Session(engine()) as session, session.begin():
        app.outbox.stage_many(session, [noop.s(number, PAD) for number in range(count)])
        session.flush()
        began_at = session.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
        begin = time.perf_counter()
    return {"seconds": time.perf_counter() - begin, "began_at": float(began_at)}


def apply_async_slowly(count: int) -> dict[str, Any]:
    """Single calls in an idle system, and the moment before each."""
    app.send_task("bench.noop", args=(-1, PAD), queue="warm")
    return {"moments": _slowly(count, lambda number: noop.apply_async((number, PAD)) and None)}


def stage_slowly(count: int) -> dict[str, Any]:
    """The same with a row each; the moment is the one before its commit."""
    bind = engine()

    def one(number: int) -> float:
        with Session(bind) as session, session.begin():
            app.outbox.stage(session, noop.s(number, PAD))
            return time.time()

    return {"moments": _slowly(count, one)}


def _slowly(count: int, call: Callable[[int], float | None]) -> dict[int, float]:
    moments = {}
    for number in range(count):
        time.sleep(random.uniform(0.03, 0.13))  # the gap is what is measured: an idle system
        began_at = time.time()
        moments[number] = call(number) or began_at
    return moments


MODES = {
    mode.__name__: mode
    for mode in (
        send_task,
        apply_async,
        stage,
        stage_many,
        stage_many_once,
        stage_at_once,
        apply_async_slowly,
        stage_slowly,
    )
}

if __name__ == "__main__":
    print(json.dumps(MODES[sys.argv[1]](int(sys.argv[2]))))
