"""How many statements 500 rows take on their way from staged to done."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from celery import Celery

from outbox_relay import Outbox
from outbox_relay.core.row import Published
from outbox_relay.core.settlement import Delivery, Settlement
from outbox_relay.store.migrate import migrate

ROWS = 500
MOST = 6


def counting(engine: sa.Engine, seen: list[str]) -> None:
    """Note every statement of an engine; BEGIN and COMMIT do not pass here."""

    @sa.event.listens_for(engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(" ".join(statement.split()[:3]))


def test_500_rows_take_at_most_six_statements_from_staged_to_done(postgres_url: str) -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(outbox_enabled=True, outbox_database_url=postgres_url)
    outbox = Outbox(app)

    @app.task(name="shop.charge", shared=False)
    def charge(number: int) -> None:
        """Never run here."""

    seen: list[str] = []
    engine = sa.create_engine(postgres_url)
    store, settings = outbox.store, outbox.settings
    migrate(store.engine, settings.table_prefix, settings.schema)
    for warm in (True, False):  # what is done once a process is not counted
        if not warm:
            counting(engine, seen)
            counting(store.engine, seen)
        with engine.begin() as connection:
            outbox.stage_many(connection, [charge.s(number) for number in range(ROWS)])
        rows = store.claim(limit=ROWS, claimed_by=uuid.uuid4(), lease=timedelta(seconds=30))
        assert len(rows) == ROWS
        marked = store.mark_published([Published(row.claim, "celery") for row in rows], queue_lease=timedelta(hours=1))
        assert marked == ROWS
        settled = store.settle(
            [Settlement.done(Delivery(row.id, 0, row.token, ""), row.message.task_id) for row in rows],
            settings.policy,
            message_life=timedelta(minutes=59),
            queue_lease=timedelta(hours=1),
        )
        assert len(settled.verdicts) == ROWS
    engine.dispose()
    outbox.close()
    assert len(seen) <= MOST, Counter(seen)
