"""What reporting costs a worker: its processor time for a task that does nothing, with the outbox and without.

``python -m benchmarks.worker_cost``, or ``make bench ARGS='--only worker-early worker-late'``. In each round the same
worker runs the same number of tasks without the outbox, without it once more (how far two equal measurements are apart
on this machine), and with it. The queue is filled before the worker may consume it, and nothing else runs meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
from functools import partial
from typing import TYPE_CHECKING

from celery import Celery

from benchmarks.harness import Bench, Place, cpu_seconds, machine, relay, send, worker
from benchmarks.measures import WITHIN, Sample, ask, count
from benchmarks.rounds import compare
from benchmarks.shop import QUEUE
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen

    from benchmarks.rounds import Comparison

FIRST = 200  # tasks that are run before those that count
QUIET = 0.5  # seconds without any work after which a worker has reported all that it will
IDLE = 0.02  # seconds of processor time that count as none
UNPUBLISHED = "SELECT count(*) FROM outbox_row WHERE status <> 'done' AND published_at IS NULL"


def comparisons(rows: int) -> dict[str, Comparison]:
    """Early and late acknowledgement, on the pool that most shops run."""
    return {f"worker-{when}": _comparison(rows, "prefork", when) for when in ("early", "late")}


def _comparison(rows: int, pool: str, when: str) -> Comparison:
    measure = partial(cost, rows=rows, pool=pool, late=when == "late")
    title = f"A worker's processor time for a task that does nothing: {pool}, acknowledged {when}"
    ways = {
        "without": partial(measure, outbox=False),
        "without, again": partial(measure, outbox=False),
        "with the outbox": partial(measure, outbox=True),
    }
    return title, "µs a task", dict(ways)


def cost(bench: Bench, *, rows: int, pool: str, late: bool, outbox: bool) -> Sample:
    """Let a worker run ``rows`` tasks after a first few, whose way makes the connections that stay."""
    with bench.place("rabbitmq", late=late) as place, worker(place, outbox=outbox, pool=pool) as process:
        _run(place, process, FIRST, outbox=outbox)
        os.truncate(place.notes, 0)
        each, alone = _run(place, process, rows, outbox=outbox)
        lost, twice = count((number for number, _ in place.runs()), rows)
    return Sample(each * 1e6, lost, twice, {"main process alone": alone * 1e6})


def _run(place: Place, process: Popen[bytes], rows: int, *, outbox: bool) -> tuple[float, float]:
    """Fill the queue, let the worker have it; return what that cost, a task: the worker, and its main process."""
    with _nothing_consumed(place):
        _fill(place, rows, outbox=outbox)
        before, before_alone = cpu_seconds(process.pid), cpu_seconds(process.pid, alone=True)
    eventually(lambda: process.poll() is not None or len(place.runs()) >= rows, WITHIN, every=0.1)
    _wait_until_quiet(process.pid)
    spent, alone = cpu_seconds(process.pid) - before, cpu_seconds(process.pid, alone=True) - before_alone
    return spent / rows, alone / rows


@contextlib.contextmanager
def _nothing_consumed(place: Place) -> Iterator[None]:
    """The worker of ``place`` waits, connected, until the end of the block."""
    with Celery("bench-control", broker=place.broker, set_as_current=False) as app:
        assert app.control.cancel_consumer(QUEUE, reply=True, timeout=5)
        yield
        assert app.control.add_consumer(QUEUE, reply=True, timeout=5, limit=1)


def _fill(place: Place, rows: int, *, outbox: bool) -> None:
    if not outbox:
        send(place, "apply_async", rows, outbox=False)
        return
    with relay(place):
        send(place, "stage_many", rows)
        eventually(lambda: ask(place, UNPUBLISHED)[0] == 0, WITHIN, every=0.1)


def _wait_until_quiet(pid: int) -> None:
    """Until the processor time of a worker stands still: what it had to report is out."""
    last = [cpu_seconds(pid)]

    def stands_still() -> bool:
        last.append(cpu_seconds(pid))
        return last[-1] - last[-2] <= IDLE

    eventually(stands_still, WITHIN, every=QUIET)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--pools", nargs="+", default=["prefork"], choices=("prefork", "threads", "solo"))
    parser.add_argument("--acks", nargs="+", default=["early", "late"], choices=("early", "late"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    random.seed(options.seed)
    chosen = {
        f"{pool}-{when}": _comparison(options.rows, pool, when) for pool in options.pools for when in options.acks
    }
    bench = Bench()
    try:
        lines = compare(bench, chosen, options.rounds)
        on = ", ".join(f"{what} {value}" for what, value in machine(bench).items())
    finally:
        bench.close()
    print(f"{options.rounds} rounds of {options.rows:,} tasks, seed {options.seed}. On {on}.", *lines, sep="\n")


if __name__ == "__main__":
    main()
