"""What a sweep costs where there is much of everything: ``python -m benchmarks.namespaces``, a part of ``make bench``.

Two outboxes in one run, swept in turn: one with nothing but the rows that are due, and one that holds done, delayed and
held rows besides, in as many namespaces, with quotas and holds. The figure is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from outbox_relay.core.namespaces import Scope
from outbox_relay.store.directives import Terms
from outbox_relay.store.engine import open_engine
from outbox_relay.store.outbox import Store
from outbox_relay.store.schema import build
from tests.support.processes import Workshop
from tests.support.servers import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH, PER_NAMESPACE, QUOTA = 500, 20, 1_000
LEASE, BUDGET = timedelta(seconds=30), timedelta(seconds=0.25)
HELD = "held"

ROWS = """
    INSERT INTO outbox_row (namespace, dispatch_key, content_hash, task_queue, exchange, routing_key, task, task_id,
        body, content_type, content_encoding, headers, properties, workflow_id, status, parked, visible_after,
        settled_at, created_at)
    SELECT 'ns' || mod(n, {namespaces}), '{kind}' || n, '\\x00', 'celery', '', 'celery', 't', 'id-{kind}' || n,
        decode(repeat('ab', 100), 'hex'), 'application/json', 'utf-8', '{{}}', '{{}}', {workflow}, '{status}', {parked},
        now() + interval '{due}',
        {settled}, now()
    FROM generate_series(1, {count}) AS n
"""


class Outbox:
    """An outbox on a database of its own, filled; ``more`` says how many rows of the other kinds there are."""

    def __init__(self, postgres: Postgres, namespaces: int, more: dict[str, int]) -> None:
        self.store = Store(
            open_engine(postgres.url(postgres.create_database())), build(), terms=Terms(default_quota=QUOTA)
        )
        self.store.migrate()
        usual = {"namespaces": namespaces, "workflow": "NULL", "parked": "false", "due": "-1 minute", "settled": "NULL"}
        kinds = {
            "done": {"status": "done", "settled": "now() - interval '1 hour'"},
            "delayed": {"status": "pending", "due": "1 day"},
            "held": {"status": "pending", "due": "-1 hour", "workflow": f"'{HELD}'"},
            "due": {"status": "pending"},
        }
        with self.store.engine.begin() as connection:
            connection.execute(
                sa.text(
                    "INSERT INTO outbox_namespace (namespace, created_at) "
                    "SELECT 'ns' || n, now() FROM generate_series(0, :last) AS n"
                ),
                {"last": namespaces - 1},
            )
            for kind, count in {**more, "due": namespaces * PER_NAMESPACE}.items():
                fields = {**usual, **kinds[kind], "kind": kind, "count": count}
                connection.exec_driver_sql(ROWS.format(**fields))
        self.store.governing.pause(Scope.WORKFLOW, HELD)
        with self.store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
        self.me = uuid.uuid4()

    def settle_down(self) -> tuple[float, float]:
        """The first sweep, and how long it takes until what is held is out of the way; seconds."""
        first = self.sweep()
        begun = time.monotonic()
        while self.store.tidy(BUDGET):
            pass
        return first, time.monotonic() - begun

    def sweep(self) -> float:
        """Claim one batch as a relay does, and give it back; how long the claim took, in seconds."""
        begun = time.monotonic()
        self.store.tidy(BUDGET)
        batch = self.store.claim(limit=BATCH, claimed_by=self.me, lease=LEASE)
        took = time.monotonic() - begun
        assert len(batch) == BATCH
        self.store.release([row.claim for row in batch])
        return took


def compared(rounds: int, outboxes: dict[str, Outbox]) -> Iterator[tuple[str, float]]:
    for _ in range(rounds):
        for name in random.sample(sorted(outboxes), len(outboxes)):
            yield name, outboxes[name].sweep()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--namespaces", type=int, default=5_000)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of 1,000,000 done, 200,000 delayed, 100,000 held rows"
    )
    options = parser.parse_args()
    more = {"done": 1_000_000, "delayed": 200_000, "held": 100_000}
    workshop = Workshop()
    postgres = Postgres(workshop)
    try:
        outboxes = {
            "otherwise empty": Outbox(postgres, options.namespaces, {}),
            "full": Outbox(postgres, options.namespaces, {k: int(v * options.scale) for k, v in more.items()}),
        }
        for name, outbox in outboxes.items():
            first, parking = outbox.settle_down()
            print(f"{name}: first sweep {first * 1000:.0f} ms, held rows parked after {parking:.1f} s more")
        took: dict[str, list[float]] = {name: [] for name in outboxes}
        for name, seconds in compared(options.rounds, outboxes):
            took[name].append(seconds)
        medians = {name: statistics.median(those) for name, those in took.items()}
        for name, median in medians.items():
            print(f"{name}: {median * 1000:.1f} ms a sweep of {BATCH} rows")
        print(f"ratio: {medians['full'] / medians['otherwise empty']:.2f} (at most 1.5)")
    finally:
        postgres.close()
        workshop.close()


if __name__ == "__main__":
    main()
