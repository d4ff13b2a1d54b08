"""A task's own database effects happen once, however often the task is delivered."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from celery import states
from celery.app.trace import build_tracer
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import create_async_engine

from outbox_relay import AlreadyDone, RunAgain, StagingError, StoreError
from outbox_relay.core.settlement import HEADER, Delivery
from outbox_relay.store.engine import open_engine
from outbox_relay.store.migrate import migrate
from tests.staging.django_stand import configured, database, forget
from tests.staging.shop import Base, BoomError, Order, Shop
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def deliver(shop: Shop, body: Callable[[], None], *, row_id: int | None = 1, task_id: str = "t1") -> Any:
    """Run ``body`` as a worker runs a task, and return what came of it."""

    def run() -> None:
        body()

    task = shop.app.task(name=f"shop.{uuid4().hex}", shared=False)(run)
    headers = {} if row_id is None else {HEADER: Delivery(row_id, 0, uuid4(), "q").header()}
    request = {"id": task_id, "task": task.name, "delivery_info": {}, "headers": headers, **headers}
    return build_tracer(task.name, task, app=shop.app)(task_id, (), {}, request)


@pytest.fixture
def order(shop: Shop) -> Callable[[], None]:
    def body() -> None:
        with shop.maker() as session, session.begin():
            shop.outbox.once(session)
            session.add(Order(name=uuid4().hex))

    return body


def test_a_second_run_is_told_that_it_is_done(shop: Shop, order: Callable[[], None]) -> None:
    assert deliver(shop, order).info is None
    second = deliver(shop, order)
    assert isinstance(second.info.retval, AlreadyDone)
    assert second.info.state == states.IGNORED  # the result of the first run stays, and no callback follows
    assert len(shop.orders()) == 1


def test_a_run_that_rolled_back_did_nothing(shop: Shop, order: Callable[[], None]) -> None:
    def fails() -> None:
        with shop.maker() as session, session.begin():
            shop.outbox.once(session)
            session.add(Order(name="x"))
            raise BoomError

    deliver(shop, fails)
    assert shop.orders() == set()
    assert deliver(shop, order).info is None
    assert len(shop.orders()) == 1


def test_rows_and_task_ids_are_told_apart(shop: Shop, order: Callable[[], None]) -> None:
    for row_id, task_id in ((1, "a"), (2, "a"), (1, "b")):
        deliver(shop, order, row_id=row_id, task_id=task_id)
    assert len(shop.orders()) == 3


def test_without_the_header_it_does_nothing(shop: Shop, order: Callable[[], None]) -> None:
    order()
    order()
    deliver(shop, order, row_id=None)
    deliver(shop, order, row_id=None)
    assert len(shop.orders()) == 4


def test_effects_that_a_rollback_would_not_undo_are_refused(pg_shop: Shop) -> None:
    engine = pg_shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    refused = []

    def body() -> None:
        with engine.connect() as connection, suppress(StagingError):
            pg_shop.outbox.once(connection)
            refused.append("not")

    deliver(pg_shop, body)
    assert refused == []


# -- every kind of connection -------------------------------------------------------------------------------------

INSERT = "INSERT INTO orders (name) VALUES (%s)"


def nothing() -> None:
    """What a run does between its effects and its commit, where a test asks for no more."""


class Run:
    """A task's body on one kind of connection: once, its effects, whatever the test does then, and the commit."""

    def __init__(self, shop: Shop, kind: str, level: str) -> None:
        self.shop = shop
        self.kind = kind
        self.level = level
        self.dsn = sa.make_url(shop.url).set(drivername="postgresql").render_as_string(hide_password=False)

    def __call__(self, then: Callable[[], None] = nothing) -> None:
        getattr(self, self.kind)(then)

    def sqlalchemy(self, then: Callable[[], None]) -> None:
        with self.shop.engine.connect().execution_options(isolation_level=self.level) as connection, connection.begin():
            self.shop.outbox.once(connection)
            connection.execute(sa.insert(Order).values(name=uuid4().hex))
            then()

    def psycopg(self, then: Callable[[], None]) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel[self.level.replace(" ", "_")]
            self.shop.outbox.once(connection)
            connection.execute(INSERT, [uuid4().hex])
            then()

    def django(self, then: Callable[[], None]) -> None:
        try:
            with transaction.atomic(), connections["default"].cursor() as cursor:
                cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {self.level}")
                self.shop.outbox.once("default")
                cursor.execute(INSERT, [uuid4().hex])
                then()
        finally:
            forget()

    def asyncio(self, then: Callable[[], None]) -> None:
        async def main() -> None:
            url = sa.make_url(self.shop.url).set(drivername="postgresql+asyncpg")
            engine = create_async_engine(url, isolation_level=self.level)
            try:
                async with engine.begin() as connection:
                    await self.shop.outbox.aonce(connection)
                    await connection.execute(sa.insert(Order).values(name=uuid4().hex))
                    then()
            finally:
                await engine.dispose()

        asyncio.run(main())

    def psycopg_async(self, then: Callable[[], None]) -> None:
        async def main() -> None:
            async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
                await connection.set_isolation_level(psycopg.IsolationLevel[self.level.replace(" ", "_")])
                await self.shop.outbox.aonce(connection)
                await connection.execute(INSERT, [uuid4().hex])
                then()

        asyncio.run(main())


KINDS = ("sqlalchemy", "psycopg", "django", "asyncio", "psycopg_async")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, pg_shop: Shop) -> Iterator[str]:
    with configured(default=database(pg_shop.url)):
        yield request.param


def test_effects_happen_once_on_every_kind_of_connection(pg_shop: Shop, kind: str) -> None:
    run = Run(pg_shop, kind, "READ COMMITTED")

    def fails() -> None:
        raise BoomError

    assert isinstance(deliver(pg_shop, lambda: run(fails)).info.retval, BoomError)
    assert pg_shop.orders() == set()
    assert deliver(pg_shop, run).info is None
    assert isinstance(deliver(pg_shop, run).info.retval, AlreadyDone)
    assert len(pg_shop.orders()) == 1


@pytest.mark.parametrize(
    ("level", "end"), [("READ COMMITTED", "commit"), ("SERIALIZABLE", "rollback"), ("REPEATABLE READ", "commit")]
)
def test_two_deliveries_at_the_same_moment(pg_shop: Shop, kind: str, level: str, end: str) -> None:
    """The second waits for the first: what it may do then, it knows only from the end of that one."""
    marked, go = threading.Event(), threading.Event()

    def hold() -> None:
        marked.set()
        assert go.wait(30)
        if end == "rollback":
            raise BoomError

    def waits() -> bool:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        with pg_shop.engine.connect() as connection:
            assert connection.exec_driver_sql(sql).scalar() == 1
        return True

    run = Run(pg_shop, kind, level)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(deliver, pg_shop, lambda: run(hold))
        assert marked.wait(30)
        second = pool.submit(deliver, pg_shop, run)
        eventually(waits, 20, what="the second run waits for the first")
        go.set()
        ends = first.result(), second.result()
    assert len(pg_shop.orders()) == 1
    if end == "rollback":
        assert isinstance(ends[0].info.retval, BoomError)
        assert ends[1].info is None
        return
    assert ends[0].info is None
    assert ends[1].info.state == states.IGNORED
    assert isinstance(ends[1].info.retval, AlreadyDone if level == "READ COMMITTED" else RunAgain)
    assert isinstance(deliver(pg_shop, run).info.retval, AlreadyDone)  # what the worker lets run again


def test_a_task_that_was_staged_in_a_run_belongs_to_it(pg_shop: Shop) -> None:
    """Its message names the running task as its parent, although it was made in a greenlet."""

    async def main() -> None:
        engine = create_async_engine(sa.make_url(pg_shop.url).set(drivername="postgresql+asyncpg"))
        async with engine.begin() as connection:
            await pg_shop.outbox.astage(connection, pg_shop.charge.s(1))
            await pg_shop.outbox.astage_many(connection, [pg_shop.charge.s(2), pg_shop.charge.s(3)])
        await engine.dispose()

    deliver(pg_shop, lambda: asyncio.run(main()), task_id="the-parent")
    assert len(pg_shop.rows()) == 3
    parents = [json.loads(row["headers"])["parent_id"] for row in pg_shop.rows()]
    assert parents == ["the-parent"] * 3


# -- a database of the shop's that is not the outbox's --------------------------------------------------------------


def test_the_marker_lives_where_the_effects_are(lite_shop: Shop, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'business.db'}"
    engine = open_engine(url)
    Base.metadata.create_all(engine)

    def body() -> None:
        with engine.begin() as connection:
            lite_shop.outbox.once(connection)
            connection.execute(sa.insert(Order).values(name=uuid4().hex))

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(Order)).scalar_one())

    missing = deliver(lite_shop, body).info.retval
    assert isinstance(missing, StoreError)
    assert "migrate --once-only" in str(missing)
    migrate(engine, once_only=True)
    for _ in range(2):
        outcome = deliver(lite_shop, body)
    assert isinstance(outcome.info.retval, AlreadyDone)
    assert count() == 1
    engine.dispose()
