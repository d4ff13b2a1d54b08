"""The app of the shop under chaos, as its processes load it: the flow tests' shop, and two tasks more."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tests.flow import shop

if TYPE_CHECKING:
    from celery import Celery

LATE = "CHAOS_LATE"  # the worker acknowledges late

EFFECTS = sa.Table(
    "chaos_effect",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("task_id", sa.String(64), nullable=False),
)


def add_tasks(app: Celery, folder: Path) -> None:
    """Add what the flow tests' shop does not have."""
    outbox: Any = app.outbox
    engine = sa.create_engine(app.conf.outbox_database_url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        outbox.configure_sqlite(engine)

    @app.task(
        name="shop.pay",
        bind=True,
        shared=False,
        autoretry_for=(sa.exc.OperationalError,),
        max_retries=None,
        default_retry_delay=1,
    )
    def pay(self: Any) -> None:
        """An effect in the task's own transaction, once; while the database is away it asks to be run again."""
        with engine.begin() as connection:
            outbox.once(connection)
            connection.execute(EFFECTS.insert().values(task_id=self.request.id))

    @app.task(name="shop.nap", bind=True, shared=False)
    def nap(self: Any, seconds: float) -> None:
        with (folder / "runs").open("a") as runs:
            runs.write(f"{self.request.id} nap\n")
        time.sleep(seconds)


if shop.CONF in os.environ:
    app = shop.app
    app.conf.task_acks_late = LATE in os.environ
    add_tasks(app, Path(os.environ[shop.FOLDER]))
