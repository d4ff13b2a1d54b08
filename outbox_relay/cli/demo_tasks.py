"""The demo's shop: its tables, and its tasks, each of which records that it ran."""

from __future__ import annotations

import os
import signal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import sqlalchemy as sa
from celery import current_app, shared_task

from outbox_relay.outbox import outbox_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F = TypeVar("F", bound="Callable[..., Any]")
metadata = sa.MetaData()
orders = sa.Table(
    "demo_order",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("task_id", sa.Text, nullable=False),
)
# The ids of tasks whose transaction was rolled back, noted afterwards and in a transaction of their own.
rolled_back = sa.Table("demo_rolled_back", metadata, sa.Column("task_id", sa.Text, primary_key=True))
runs = sa.Table(
    "demo_run",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("task_id", sa.Text, nullable=False, index=True),
    sa.Column("retries", sa.Integer, nullable=False),
)


class CardRefused(Exception):  # noqa: N818 - the demo's own words
    """What a task of the demo ends with when it fails for good."""


@lru_cache(maxsize=1)
def engine_of(url: str) -> sa.Engine:
    """Return this process's engine, opened after its fork."""
    engine = sa.create_engine(url)
    outbox_of(current_app).configure_sqlite(engine)
    return engine


def _task(**options: Any) -> Callable[[F], F]:
    return cast("Callable[[F], F]", shared_task(bind=True, **options))


def _record(task: Any) -> int:
    """Record that a task runs, and return how often it has run before."""
    ours = runs.c.task_id == task.request.id
    with engine_of(task.app.conf.outbox_database_url).begin() as connection:
        before = connection.execute(sa.select(sa.func.count()).select_from(runs).where(ours)).scalar_one()
        connection.execute(runs.insert().values(task_id=task.request.id, retries=task.request.retries))
    return int(before)


@_task(name="demo.charge")
def charge(self: Any, number: int) -> None:
    """Succeeds at once."""
    _record(self)


@_task(name="demo.mail")
def mail(self: Any, number: int) -> None:
    """Succeeds at once; staged in bulk, under a workflow."""
    _record(self)


@_task(name="demo.remind")
def remind(self: Any, number: int) -> None:
    """Succeeds; staged with a countdown, which it waits out in the database."""
    _record(self)


@_task(name="demo.ship", max_retries=3)
def ship(self: Any, number: int) -> None:
    """Asks to be retried once, then succeeds."""
    _record(self)
    if self.request.retries == 0:
        raise self.retry(countdown=1)


@_task(name="demo.refund")
def refund(self: Any, number: int) -> None:
    """Fails for good."""
    _record(self)
    raise CardRefused(f"order {number}: the card was refused")


@_task(name="demo.render")
def render(self: Any, number: int) -> None:
    """Takes its whole pool child down the first time, as the kernel does when memory runs out; then succeeds."""
    if _record(self) == 0:
        os.kill(os.getpid(), signal.SIGKILL)


KINDS: dict[str, tuple[Any, int]] = {
    "render": (render, 1),
    "charge": (charge, 679),
    "mail": (mail, 200),
    "remind": (remind, 40),
    "ship": (ship, 40),
    "refund": (refund, 40),
}


def total(kinds: Sequence[str] = tuple(KINDS)) -> int:
    """How many tasks of these kinds the demo commits."""
    return sum(KINDS[kind][1] for kind in kinds)
