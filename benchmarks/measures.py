"""What is measured. Each measure takes the bench and a number of rows, and returns what it saw."""

from __future__ import annotations

import contextlib
import random
import re
import statistics
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from benchmarks.harness import cpu_seconds, drain, relay, send, worker
from outbox_relay.store.engine import open_engine
from outbox_relay.store.outbox import Store
from outbox_relay.store.schema import build
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.harness import Bench, Place

WITHIN = 60.0  # seconds for all rows of one measurement


@dataclass(frozen=True)
class Sample:
    """One measurement: ``value`` in the unit of its table, and what was lost or came twice."""

    value: float
    lost: int = 0
    twice: int = 0
    more: dict[str, float] = field(default_factory=dict)


def count(ids: Iterable[Any], expected: int) -> tuple[int, int]:
    """How many are missing, and how many are there more than once."""
    counts = Counter(ids)
    return expected - len(counts), sum(count - 1 for count in counts.values())


def ask(place: Place, statement: str) -> Any:
    engine = sa.create_engine(place.database)
    try:
        with engine.connect() as connection:
            return connection.execute(sa.text(statement)).one()
    finally:
        engine.dispose()


# -- rows 1 and 2: to the broker, messages a second -----------------------------------------------------------------


def publish_send_task(bench: Bench, broker: str, rows: int) -> Sample:
    with bench.place(broker) as place:
        seconds = send(place, "send_task", rows, outbox=False)["seconds"]
        lost, twice = count(drain(place.broker, rows), rows)
    return Sample(rows / seconds, lost, twice)


def publish_confirmed(bench: Bench, broker: str, rows: int) -> Sample:
    with bench.place(broker) as place:
        seconds = send(place, "send_task", rows, outbox=False, confirm=True)["seconds"]
        lost, twice = count(drain(place.broker, rows), rows)
    return Sample(rows / seconds, lost, twice)


def publish_relay(bench: Bench, broker: str, rows: int) -> Sample:
    """From just before the commit to the last row's mark, by the database's clock."""
    left = "SELECT count(*) FILTER (WHERE published_at IS NULL), extract(epoch FROM max(published_at)) FROM outbox_row"
    with bench.place(broker) as place, relay(place) as process:
        before = cpu_seconds(process.pid)
        began_at = send(place, "stage_at_once", rows)["began_at"]
        eventually(lambda: ask(place, left)[0] == 0, WITHIN, every=0.5)
        more = {"relay CPU, µs a message": (cpu_seconds(process.pid) - before) / rows * 1e6}
        seconds = float(ask(place, left)[1]) - began_at
        lost, twice = count(drain(place.broker, rows), rows)
    return Sample(rows / seconds, lost, twice, more)


# -- row 3: the whole way, tasks a second --------------------------------------------------------------------------


def _worked(place: Place, process_id: int, rows: int, before: float) -> dict[str, float]:
    return {"worker CPU, µs a task": (cpu_seconds(process_id) - before) / rows * 1e6} if place else {}


def whole_plain(bench: Bench, rows: int) -> Sample:
    """``apply_async`` in a loop, and a worker that knows no outbox."""
    with bench.place("rabbitmq") as place, worker(place, outbox=False) as process:
        before = cpu_seconds(process.pid)
        began_at = send(place, "apply_async", rows, outbox=False)["began_at"]
        eventually(lambda: len(place.runs()) >= rows, WITHIN, every=0.5)
        more = _worked(place, process.pid, rows, before)
        runs = place.runs()
    lost, twice = count((number for number, _ in runs), rows)
    return Sample(rows / (max(moment for _, moment in runs) - began_at), lost, twice, more)


def whole_outbox(bench: Bench, rows: int) -> Sample:
    """Staged in bulk, published by a relay, run by a stock worker, until the last row is done."""
    done = (
        "SELECT count(*) FILTER (WHERE status <> 'done'), extract(epoch FROM max(settled_at)), count(*) FROM outbox_row"
    )
    with bench.place("rabbitmq") as place, relay(place), worker(place, outbox=True) as process:
        before = cpu_seconds(process.pid)
        began_at = send(place, "stage_many", rows)["began_at"]
        eventually(lambda: len(place.runs()) >= rows and ask(place, done)[0] == 0, WITHIN, every=0.5)
        more = _worked(place, process.pid, rows, before)
        ended_at = float(ask(place, done)[1])
        runs = place.runs()
    lost, twice = count((number for number, _ in runs), rows)
    return Sample(rows / (ended_at - began_at), lost, twice, more)


# -- row 4: staging, microseconds a task ---------------------------------------------------------------------------


def _handing_over(bench: Bench, mode: str, rows: int, *, outbox: bool) -> Sample:
    with bench.place("rabbitmq") as place:
        took = send(place, mode, rows, outbox=outbox)
        return Sample(took["seconds"] / rows * 1e6, more={"of it the client's processor": took["cpu"] / rows * 1e6})


def staging_send_task(bench: Bench, rows: int) -> Sample:
    return _handing_over(bench, "send_task", rows, outbox=False)


def staging_one(bench: Bench, rows: int) -> Sample:
    return _handing_over(bench, "stage", rows, outbox=True)


def staging_bulk(bench: Bench, rows: int) -> Sample:
    return _handing_over(bench, "stage_many", rows, outbox=True)


def staging_bulk_once(bench: Bench, rows: int) -> Sample:
    return _handing_over(bench, "stage_many_once", rows, outbox=True)


# -- row 5: commit to start, milliseconds --------------------------------------------------------------------------


def _latencies(place: Place, moments: dict[str, float]) -> Sample:
    eventually(lambda: len(place.runs()) >= len(moments), WITHIN)
    runs = place.runs()
    started = dict(reversed(runs))
    waits = sorted((started[int(number)] - moment) * 1e3 for number, moment in moments.items())
    lost, twice = count((number for number, _ in runs), len(moments))
    return Sample(statistics.median(waits), lost, twice, {"p99": waits[int(len(waits) * 0.99)]})


def latency_plain(bench: Bench, count: int) -> Sample:
    with bench.place("rabbitmq") as place, worker(place, outbox=False):
        return _latencies(place, send(place, "apply_async_slowly", count, outbox=False)["moments"])


def latency_outbox(bench: Bench, count: int) -> Sample:
    with bench.place("rabbitmq") as place, relay(place), worker(place, outbox=True):
        return _latencies(place, send(place, "stage_slowly", count)["moments"])


# -- row 6: statements ---------------------------------------------------------------------------------------------

_STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): (\w+(?: [\w.]+){0,2})")
#: Around the statements of a transaction, and once a connection.
_NOT_COUNTED = {"BEGIN", "COMMIT", "ROLLBACK", "SET", "SHOW", "LISTEN"}
_ONCE = ("select pg_catalog.version", "select current_schema", "SELECT pg_backend_pid")


@contextlib.contextmanager
def _logged(bench: Bench, place: Place) -> Iterator[Counter[str]]:
    """The statements of the outbox's own processes and of those that stage, within the block, by their first words.

    They are there when the block has ended.
    """
    database = sa.make_url(place.database).database
    start = len(bench.postgres.log_text())
    seen: Counter[str] = Counter()
    yield seen
    lines = [line for line in bench.postgres.log_text()[start:].splitlines() if f"database={database} " in line]
    ours = [line for line in lines if "application=outbox" in line or "application=bench" in line]
    found = [match[1] for line in ours if (match := _STATEMENT.search(line))]
    seen.update(words for words in found if words.split()[0].upper() not in _NOT_COUNTED and words not in _ONCE)


def _log_all(bench: Bench, place: Place) -> str:
    """Let the server log every statement on the database of ``place``; return its name."""
    database = str(sa.make_url(place.database).database)
    bench.postgres.execute(f"ALTER DATABASE \"{database}\" SET log_statement = 'all'")
    return database


def statements(bench: Bench, rows: int) -> Counter[str]:
    """From staging to done, under a backlog: the relay starts when all rows are there."""
    with bench.place("rabbitmq") as place:
        database = _log_all(bench, place)
        with worker(place, outbox=True), _logged(bench, place) as seen:
            send(place, "stage_many", rows)
            with relay(place):
                eventually(lambda: len(place.runs()) >= rows, WITHIN, every=0.5)
                left = "SELECT count(*) FROM outbox_row WHERE status <> 'done'"
                eventually(lambda: bench.postgres.execute(left, database=database)[0][0] == 0, WITHIN, every=0.5)
    return seen


# -- row 9: a relay with nothing to do -----------------------------------------------------------------------------


def idle(bench: Bench, seconds: float = 60.0) -> tuple[Counter[str], float]:
    """The statements of an idle relay, with a worker beside it, and the part of a core that the relay takes."""
    with bench.place("rabbitmq") as place:
        _log_all(bench, place)
        with worker(place, outbox=True), relay(place) as process:
            time.sleep(10)  # what is done at the start is over
            before = cpu_seconds(process.pid)
            with _logged(bench, place) as seen:
                time.sleep(seconds)
            return seen, (cpu_seconds(process.pid) - before) / seconds


# -- row 7: the cost of a claim, milliseconds ------------------------------------------------------------------------

_FILL = """
INSERT INTO outbox_row (namespace, dispatch_key, content_hash, task_queue, exchange, routing_key, task, task_id, body,
    content_type, content_encoding, headers, properties, status, parked, visible_after, settled_at, created_at)
SELECT 'default', :name || n, decode(md5(n::text), 'hex'), 'celery', 'celery', 'celery', 'bench.noop',
    gen_random_uuid()::text, convert_to(repeat('x', 200), 'UTF8'), 'application/json', 'utf-8',
    convert_to(repeat('h', 250), 'UTF8'), convert_to('{}', 'UTF8'), :status, :parked,
    now() + make_interval(secs => :delay), CASE WHEN :status = 'done' THEN now() END, now()
FROM generate_series(1, :count) AS n
"""


def _fill(engine: sa.Engine, status: str, count: int, *, parked: bool = False, delay: float = -60) -> None:
    with engine.begin() as connection:
        name = f"{status}-{parked}-{delay}-{uuid.uuid4().hex[:6]}-"
        values = {"name": name, "status": status, "parked": parked, "delay": delay, "count": count}
        connection.execute(sa.text(_FILL), values)


def claims(bench: Bench, *, done: int, delayed: int, held: int, turns: int = 40) -> dict[str, list[float]]:
    """A claim of 500 rows on a table with nothing else in it, and on a full one, in turns."""
    took: dict[str, list[float]] = {"empty": [], "full": []}
    with bench.place("rabbitmq") as one, bench.place("rabbitmq") as other:
        stores = {}
        for name, place in (("empty", one), ("full", other)):
            engine = open_engine(place.database)
            if name == "full":
                _fill(engine, "done", done)
                _fill(engine, "pending", delayed, delay=86_400)
                _fill(engine, "pending", held, parked=True)
            _fill(engine, "pending", turns * 500 + 500)
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(sa.text("VACUUM ANALYZE outbox_row"))
            stores[name] = Store(engine, build())
        bench.postgres.execute("CHECKPOINT")
        me = uuid.uuid4()
        for turn in range(turns):
            for name in random.sample(sorted(stores), 2):
                begin = time.perf_counter()
                batch = stores[name].claim(limit=500, claimed_by=me, lease=timedelta(seconds=300))
                if turn:
                    took[name].append((time.perf_counter() - begin) * 1e3)
                assert len(batch) == 500, f"claimed {len(batch)}"
        for store in stores.values():
            store.close()
    return took
