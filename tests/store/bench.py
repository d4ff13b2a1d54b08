"""A store with what tests do to it in one word each."""

from __future__ import annotations

import itertools
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.core.backoff import Backoff
from outbox_relay.core.row import Batch, ClaimedRow, Common, NewRow, Published, RowDetail, Staged
from outbox_relay.core.settlement import Delivery, Policy, Settlement
from outbox_relay.store.directives import Terms
from outbox_relay.store.engine import open_engine
from outbox_relay.store.migrate import migrate
from outbox_relay.store.outbox import Store
from outbox_relay.store.schema import build
from outbox_relay.store.staging import insert_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outbox_relay.store.settling import Settled

HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)
OVER = timedelta(seconds=-1)  # a lease that is over when it begins
POLICY = Policy(3, Backoff(timedelta(seconds=10), 2.0, timedelta(seconds=3600)))
HASH = b"\x01" * 16


def new_row(key: str, namespace: str = "default", **changes: Any) -> NewRow:
    """A row with fields of :class:`Common` and :class:`NewRow` changed."""
    common: dict[str, Any] = {
        "namespace": namespace,
        "task_queue": "celery",
        "node": None,
        "exchange": "",
        "routing_key": "celery",
        "task": "shop.charge",
        "content_type": "application/json",
        "content_encoding": "utf-8",
    }
    own: dict[str, Any] = {
        "content_hash": HASH,
        "task_id": f"id-{namespace}-{key}",
        "body": b'[[1], {}, {"chord": null}]',
        "headers": b'{"task": "shop.charge"}',
        "properties": b'{"priority": 0}',
    }
    for name, value in changes.items():
        (common if name in Common._fields else own)[name] = value
    return NewRow(common=Common(**common), dispatch_key=key, **own)


class Bench:
    """One outbox on one database."""

    def __init__(self, url: str, prefix: str = "outbox_", schema: str | None = None) -> None:
        self.url = url
        self.engine = open_engine(url)
        self.tables = build(prefix, schema)
        migrate(self.engine, prefix, schema)
        self.store = Store(self.engine, self.tables)
        self.me = uuid.uuid4()
        self._others: list[Store] = []
        self._watermark = self.store._claims._watermark
        self._keys = (f"key-{number:06}" for number in itertools.count())

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    def look_ahead_only(self) -> None:
        """No full look comes from now on, however slow the test, but after a reset."""
        self._watermark.least = 3_600.0

    def know_at_once(self) -> None:
        """What is said, and every claimed row, is read anew before each claim."""
        self.store._claims._notices._read_for = 0.0
        self.store._claims._fair._census.full_every = 0.0

    def another(self, **terms: Any) -> Store:
        """A second relay: a store with connections of its own, and perhaps on terms of its own."""
        store = Store(open_engine(self.url), self.tables, terms=Terms(**terms))
        self._others.append(store)
        return store

    def empty(self) -> None:
        """Bring the tables back to what a migration leaves."""
        with self.engine.begin() as connection:
            for table in self.tables.metadata.sorted_tables:
                if table is not self.tables.meta:
                    keep = table.c.namespace == "default" if table is self.tables.namespace else sa.false()
                    connection.execute(sa.delete(table).where(sa.not_(keep)))
            usual = {"placement": "unplaced", "nodes": "[]", "max_in_flight": None, "state": "active"}
            connection.execute(sa.update(self.tables.namespace).values(last_seen_at=None, **usual))

    def close(self) -> None:
        for store in self._others:
            store.close()
        self.engine.dispose()

    # -- a row's life ------------------------------------------------------------------------------------------------

    def stage(self, count: int = 1, namespace: str = "default", **changes: Any) -> list[Staged]:
        return self.insert([new_row(next(self._keys), namespace, **changes) for _ in range(count)])

    def insert(self, rows: Sequence[NewRow], *, wake: bool = False, open_namespaces: bool = True) -> list[Staged]:
        with self.engine.begin() as connection:
            return insert_rows(connection, self.tables, rows, wake=wake, open_namespaces=open_namespaces)

    def claim(self, limit: int = 100, lease: timedelta = LEASE, store: Store | None = None) -> Batch:
        return (store or self.store).claim(limit=limit, claimed_by=self.me, lease=lease)

    def claim_one(self, lease: timedelta = LEASE) -> ClaimedRow:
        (row,) = self.claim(1, lease)
        return row

    def publish(self, rows: Sequence[ClaimedRow], to: str = "celery", lease: timedelta = HOUR, **more: Any) -> int:
        return self.store.mark_published([Published(row.claim, to, **more) for row in rows], queue_lease=lease)

    def settle(self, *settlements: Settlement, **more: Any) -> Settled:
        options: dict[str, Any] = {"message_life": None, "queue_lease": HOUR, **more}
        return self.store.settle(settlements, POLICY, **options)

    # -- what became of it -------------------------------------------------------------------------------------------

    def see(self, row_id: int) -> RowDetail:
        (row,) = self.store.find(str(row_id))
        return row

    def column(self, row_id: int, name: str) -> Any:
        row = self.tables.row
        with self.engine.begin() as connection:
            return connection.execute(sa.select(row.c[name]).where(row.c.id == row_id)).scalar_one()

    def set(self, row_ids: int | Sequence[int], **columns: Any) -> None:
        row = self.tables.row
        ids = [row_ids] if isinstance(row_ids, int) else row_ids
        with self.engine.begin() as connection:
            connection.execute(sa.update(row).where(row.c.id.in_(ids)).values(**columns))

    def statuses(self) -> dict[int, str]:
        row = self.tables.row
        with self.engine.begin() as connection:
            found = connection.execute(sa.select(row.c.id, row.c.status))
            return {one.id: one.status for one in found}


def delivery(row: ClaimedRow) -> Delivery:
    """What the header of a claimed row's message says."""
    return Delivery(row.id, row.attempt, row.token, "outbox.settlements.shop")


def done(row: ClaimedRow) -> Settlement:
    return Settlement.done(delivery(row), row.message.task_id)


def failed(row: ClaimedRow, error: str = "ValueError: no") -> Settlement:
    return Settlement.failed(delivery(row), row.message.task_id, error)


def lost(row: ClaimedRow) -> Settlement:
    return Settlement.lost(delivery(row), row.message.task_id, "the pool process is gone")


class Statements:
    """The statements that an engine runs, without BEGIN and COMMIT."""

    def __init__(self, engine: sa.Engine) -> None:
        self.seen: list[str] = []
        self._engine = engine

    def __enter__(self) -> Statements:
        sa.event.listen(self._engine, "before_cursor_execute", self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sa.event.remove(self._engine, "before_cursor_execute", self._note)

    def _note(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            self.seen.append(statement)


def spread(rows: Iterator[ClaimedRow] | Batch) -> dict[str, int]:
    """How many rows of each namespace there are."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.namespace] = counts.get(row.namespace, 0) + 1
    return counts
