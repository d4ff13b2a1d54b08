"""The main path, measured: ``python -m benchmarks.main_path``, or ``make bench``.

Everything that is compared runs in every round, in an order that is shuffled, each on a database and a vhost of its own
and in processes of its own. The tables show medians over the rounds; ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import measures, worker_cost
from benchmarks.harness import Bench, machine
from benchmarks.report import merged
from benchmarks.rounds import compare
from tests.support.documents import part, write

if TYPE_CHECKING:
    from benchmarks.rounds import Comparison

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"


def comparisons(rows: int) -> dict[str, Comparison]:
    """What is compared, by name."""
    return {
        "rabbitmq": (
            "To RabbitMQ: committed row to confirmed and marked, against a loop of `send_task`",
            "messages/s",
            {
                "send_task": partial(measures.publish_send_task, broker="rabbitmq", rows=rows),
                "send_task, confirms": partial(measures.publish_confirmed, broker="rabbitmq", rows=rows),
                "relay": partial(measures.publish_relay, broker="rabbitmq", rows=rows),
            },
        ),
        "redis": (
            "To Redis: the same",
            "messages/s",
            {
                "send_task": partial(measures.publish_send_task, broker="redis", rows=rows),
                "relay": partial(measures.publish_relay, broker="redis", rows=rows),
            },
        ),
        "whole": (
            "The whole way: handed over, run by a stock prefork worker (two processes), row done",
            "tasks/s",
            {
                "apply_async": partial(measures.whole_plain, rows=rows),
                "outbox": partial(measures.whole_outbox, rows=rows),
            },
        ),
        "staging": (
            "Handing over: one call",
            "µs a task",
            {
                "send_task": partial(measures.staging_send_task, rows=rows),
                "stage": partial(measures.staging_one, rows=rows),
                "stage_many, 1,000 at a time": partial(measures.staging_bulk, rows=rows),
                "stage_many, all in one call": partial(measures.staging_bulk_once, rows=rows),
            },
        ),
        "latency": (
            "From commit (or call) to the start of the task, in an idle system",
            "p50, ms",
            {
                "apply_async": partial(measures.latency_plain, count=200),
                "outbox": partial(measures.latency_outbox, count=200),
            },
        ),
        **worker_cost.comparisons(rows),
    }


def statements(bench: Bench) -> list[str]:
    rows = 10_000
    seen = measures.statements(bench, rows)
    each = sum(seen.values()) / (rows / 500)
    kinds = ", ".join(f"{count} {word}" for word, count in seen.most_common())
    return [
        "",
        "### Statements per 500 rows, from staged to done",
        "",
        f"{each:.1f}. In all, for {rows:,} rows: {kinds}.",
    ]


def idle(bench: Bench) -> list[str]:
    seconds = 60.0
    seen, core = measures.idle(bench, seconds)
    kinds = ", ".join(f"{count} {word}" for word, count in seen.most_common())
    each = f"{sum(seen.values()) / seconds:.2f} statements a second, {core:.2%} of a core"
    return ["", "### An idle relay, with a worker beside it", "", f"{each}. In {seconds:.0f} seconds: {kinds}."]


def claims(bench: Bench, scale: float) -> list[str]:
    sizes = {"done": int(1_000_000 * scale), "delayed": int(200_000 * scale), "held": int(100_000 * scale)}
    took = measures.claims(bench, **sizes)
    empty, full = (statistics.median(took[name]) for name in ("empty", "full"))
    beside = ", ".join(f"{count:,} {name}" for name, count in sizes.items())
    ratio = f"{empty:.1f} ms on a table with nothing else, {full:.1f} ms beside {beside} rows; {full / empty:.2f}×"
    return ["", "### The cost of a claim", "", f"500 rows: {ratio}."]


def main() -> None:
    every = [*comparisons(0), "statements", "idle", "claims"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the full table that claims are measured on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--write", action="store_true", help="put the figures into docs/performance.md; of a part, that part"
    )
    options = parser.parse_args()
    random.seed(options.seed)
    bench = Bench()
    try:
        chosen = {name: one for name, one in comparisons(options.rows).items() if name in options.only}
        lines = compare(bench, chosen, options.rounds)
        if "statements" in options.only:
            lines += statements(bench)
        if "idle" in options.only:
            lines += idle(bench)
        if "claims" in options.only:
            lines += claims(bench, options.scale)
        on = ", ".join(f"{what} {value}" for what, value in machine(bench).items())
    finally:
        bench.close()
    day = time.strftime("%d %B %Y", time.gmtime())
    note = f"{day}; {options.rounds} rounds of {options.rows:,} rows"
    text = "\n".join([f"{note}, seed {options.seed}. On {on}.", *lines])
    print(text)
    if options.write:
        page = PAGE.read_text()
        if set(options.only) != set(every):
            text = merged(part(page, "figures"), lines, note)
        PAGE.write_text(write(page, "figures", text))


if __name__ == "__main__":
    main()
