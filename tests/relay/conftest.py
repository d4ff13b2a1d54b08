"""The loops of a relay, called tick by tick on a real database and a real broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from celery import Celery

from outbox_relay.outbox import Outbox
from outbox_relay.publish.publisher import open_publisher
from outbox_relay.relay.parts import make_parts
from outbox_relay.relay.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from outbox_relay.core.row import Staged
    from outbox_relay.events import Event
    from outbox_relay.publish.receipts import Publisher
    from outbox_relay.relay.parts import Parts

    OpenBench = Callable[..., "Bench"]


@dataclass
class Bench:
    """An outbox with the parts of one relay."""

    outbox: Outbox
    engine: sa.Engine
    parts: Parts
    publisher: Publisher
    events: list[Event] = field(default_factory=list)

    def sweep(self, **options: Any) -> Sweep:
        return Sweep(self.parts, self.publisher, **options)

    def stage(self, count: int = 1, **options: Any) -> list[Staged]:
        celery_options = options.pop("options", {})
        with self.engine.begin() as connection:
            signatures = [self.outbox.app.signature("shop.charge", args=(n,), **celery_options) for n in range(count)]
            return self.outbox.stage_many(connection, signatures, **options)

    def row(self, staged: Staged) -> Any:
        (row,) = self.outbox.store.find(str(staged.row_id))
        return row

    def said(self, name: str) -> list[dict[str, Any]]:
        """The fields of every event of that name so far."""
        return [dict(event.fields) for event in self.events if event.name == name]


@pytest.fixture
def open_bench(tmp_path: Path) -> Iterator[OpenBench]:
    opened: list[Bench] = []

    def open_(database_url: str, broker_url: str, *, migrate: bool = True, **conf: Any) -> Bench:
        app = Celery("shop", broker=broker_url, set_as_current=False)
        app.conf.update(outbox_enabled=True, outbox_database_url=database_url, task_default_queue="shop", **conf)
        outbox = Outbox(app)
        if migrate:
            outbox.store.migrate()
        engine = sa.create_engine(database_url)
        if engine.dialect.name == "sqlite":
            outbox.configure_sqlite(engine)
        bench = Bench(outbox, engine, make_parts(outbox, uuid4()), open_publisher(app, events=outbox.events))
        outbox.events.subscribe(bench.events.append)
        opened.append(bench)
        return bench

    yield open_
    for bench in opened:
        bench.publisher.close()
        bench.engine.dispose()
        bench.outbox.close()
        bench.outbox.app.close()


@pytest.fixture
def bench(open_bench: OpenBench, sqlite_url: str, embedded_url: str) -> Bench:
    """The lightest one."""
    return open_bench(sqlite_url, embedded_url)
