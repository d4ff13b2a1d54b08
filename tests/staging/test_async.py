"""Async sessions and connections, on each driver: what is sent lives and dies with the transaction it is sent in."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, SAWarning
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from outbox_relay import DispatchKeyConflict, Outbox, StagingError
from outbox_relay.store.wake import channel_name
from tests.staging.shop import Base, BoomError, Order, Shop, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from sqlalchemy.orm import Session

DRIVERS = ("psycopg", "asyncpg", "aiosqlite")


@dataclass
class Async:
    """A shop, and its database by an async driver."""

    shop: Shop
    url: sa.URL

    @property
    def outbox(self) -> Outbox:
        return self.shop.outbox

    @property
    def charge(self) -> Any:
        return self.shop.charge

    def run(self, main: Callable[[async_sessionmaker[AsyncSession]], Awaitable[None]], **options: Any) -> None:
        """Run ``main`` with a maker of sessions, in a loop of its own."""

        async def whole() -> None:
            async with self.engine(**options) as engine:
                await main(async_sessionmaker(engine))

        asyncio.run(whole())

    @asynccontextmanager
    async def engine_on(self, file: Path) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
        Outbox.configure_sqlite(engine)
        yield engine
        await engine.dispose()

    @asynccontextmanager
    async def engine(self, **options: Any) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.url, **options)
        if engine.dialect.name == "sqlite" and not options:  # it would begin honest transactions under AUTOCOMMIT too
            Outbox.configure_sqlite(engine)
        yield engine
        await engine.dispose()

    def sent(self) -> list[int]:
        """The first arguments of the tasks that are committed, in the order in which they were inserted."""
        return [int(row["body"].decode().split("[[")[1].split("]")[0]) for row in self.shop.rows()]


@pytest.fixture(params=DRIVERS)
def stand(request: pytest.FixtureRequest) -> Iterator[Async]:
    database = "sqlite" if request.param == "aiosqlite" else "postgres"
    url = sa.make_url(request.getfixturevalue(f"{database}_url"))
    for shop in opened(str(request.getfixturevalue(f"{database}_url"))):
        yield Async(shop, url.set(drivername=f"{url.get_backend_name()}+{request.param}"))


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Async]:
    for shop in opened(sqlite_url):
        yield Async(shop, sa.make_url(sqlite_url).set(drivername="sqlite+aiosqlite"))


# -- by await -----------------------------------------------------------------------------------------------------


def test_one_task(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker() as session, session.begin():
            session.add(Order(name="a"))
            staged = await stand.outbox.astage(session, stand.charge.s(1), namespace="acme", dispatch_key="k")
            assert staged.created
            again = await stand.outbox.astage(session, stand.charge.s(1), namespace="acme", dispatch_key="k")
            assert (again.task_id, again.created) == (staged.task_id, False)
        with suppress(BoomError):
            async with maker() as session, session.begin():
                await stand.outbox.astage(session, stand.charge.s(2))
                raise BoomError

    stand.run(main)
    assert stand.sent() == [1]
    assert stand.shop.orders() == {"a"}


def test_many_tasks_and_savepoints(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker() as session, session.begin():
            many = await stand.outbox.astage_many(session, (stand.charge.s(n) for n in range(1200)), workflow_id="w")
            assert len({one.task_id for one in many}) == 1200
            with suppress(BoomError):
                async with session.begin_nested():
                    await stand.outbox.astage(session, stand.charge.s(5000))
                    raise BoomError
            async with session.begin_nested():
                await stand.outbox.astage(session, stand.charge.s(5001))

    stand.run(main)
    assert sorted(stand.sent()) == [*range(1200), 5001]


def test_connections_and_scoped_sessions(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        engine = maker.kw["bind"]
        async with engine.begin() as connection:
            await stand.outbox.astage(connection, stand.charge.s(1))
        async with engine.connect() as connection:
            await stand.outbox.astage(connection, stand.charge.s(2))
            await connection.rollback()
            await stand.outbox.astage(connection, stand.charge.s(3))
            await connection.commit()
        scoped = async_scoped_session(maker, asyncio.current_task)
        await stand.outbox.astage(scoped, stand.charge.s(4))
        await scoped.commit()
        await scoped.remove()

    stand.run(main)
    assert stand.sent() == [1, 3, 4]


def test_autocommit_is_no_transaction(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker() as session:
            with pytest.raises(StagingError, match="outside a transaction"):
                await stand.outbox.astage(session, stand.charge.s(1))
        with pytest.raises(StagingError, match="outside a transaction"):
            async with stand.outbox.begin(maker):
                stand.charge.delay(2)

    stand.run(main, isolation_level="AUTOCOMMIT")
    assert stand.sent() == []


def test_run_sync_gives_the_sync_side(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker() as session, session.begin():
            await session.run_sync(lambda sync: stand.outbox.stage(sync, stand.charge.s(1)))

    stand.run(main)
    assert stand.sent() == [1]


# -- captures -----------------------------------------------------------------------------------------------------


def test_begin_commits_what_is_sent_inside_or_rolls_it_back(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with stand.outbox.begin(maker, namespace="acme", workflow_id="w") as session:
            session.add(Order(name="a"))
            for number in range(50):
                stand.charge.delay(number)
        with suppress(BoomError):
            async with stand.outbox.begin(maker) as session:
                session.add(Order(name="b"))
                stand.charge.delay(50)
                raise BoomError
        async with stand.outbox.begin(maker.kw["bind"]) as connection:
            await connection.execute(sa.insert(Order).values(name="c"))
            stand.charge.delay(51)
        async with stand.outbox.begin(async_scoped_session(maker, asyncio.current_task)):
            stand.charge.delay(52)

    stand.run(main)
    assert sorted(stand.sent()) == [*range(50), 51, 52]
    assert stand.shop.orders() == {"a", "c"}
    assert sorted(row["ordinal"] for row in stand.shop.rows() if row["workflow_id"]) == [*range(50)]


def test_each_row_has_the_fate_of_the_savepoint_that_it_was_sent_in(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with stand.outbox.begin(maker) as session:
            stand.charge.delay(1)
            with suppress(BoomError):
                async with session.begin_nested():
                    stand.charge.delay(2)
                    async with session.begin_nested():
                        stand.charge.delay(3)
                    raise BoomError
            async with session.begin_nested():
                stand.charge.delay(4)
                with suppress(BoomError):
                    async with session.begin_nested():
                        stand.charge.delay(5)
                        raise BoomError
                stand.charge.delay(6)
            nested = await session.begin_nested()
            stand.charge.delay(7)
            await nested.rollback()
            stand.charge.delay(8)

    stand.run(main)
    assert sorted(stand.sent()) == [1, 4, 6, 8]


def test_a_savepoint_that_is_open_at_the_commit_is_released_with_what_was_sent_in_it(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with stand.outbox.begin(maker) as session:
            stand.charge.delay(1)
            await session.begin_nested()
            stand.charge.delay(2)
            await session.begin_nested()
            stand.charge.delay(3)
        async with maker() as session, stand.outbox.acapture(session):
            stand.charge.delay(4)
            await session.begin_nested()
            stand.charge.delay(5)
            await session.commit()

    stand.run(main)
    assert sorted(stand.sent()) == [1, 2, 3, 4, 5]


def test_a_failed_flush_in_a_savepoint_takes_nothing_else_with_it(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with stand.outbox.begin(maker) as session:
            session.add(Order(name="taken"))
            await session.flush()
            stand.charge.delay(1)
            with suppress(IntegrityError):
                async with session.begin_nested():
                    stand.charge.delay(2)
                    session.add(Order(name="taken"))
            stand.charge.delay(3)

    stand.run(main)
    assert sorted(stand.sent()) == [1, 3]


def test_commit_and_rollback_inside_the_block(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker() as session, stand.outbox.acapture(session):
            stand.charge.delay(1)
            await session.commit()
            stand.charge.delay(2)
            await session.rollback()
            stand.charge.delay(3)
            await session.commit()
            stand.charge.delay(4)
            await session.close()
            stand.charge.delay(5)
        # at its end the block has inserted the last one, but nobody has committed it

    stand.run(main)
    assert stand.sent() == [1, 3]


def test_the_end_of_a_block_is_no_commit_and_no_rollback(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker() as session, session.begin():
            async with stand.outbox.acapture(session):
                stand.charge.delay(1)
            with suppress(BoomError):
                async with stand.outbox.acapture(session):
                    stand.charge.delay(2)
                    raise BoomError  # caught inside the transaction, which goes on: as sync code has it
        with suppress(BoomError):
            async with maker() as session, session.begin():
                async with stand.outbox.acapture(session):
                    stand.charge.delay(3)
                raise BoomError

    stand.run(main)
    assert stand.sent() == [1, 2]


def test_a_session_is_used_again_after_a_failed_flush(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker() as session, stand.outbox.acapture(session):
            stand.charge.delay(1)
            session.add_all([Order(name="twice"), Order(name="twice")])
            with suppress(IntegrityError):
                await session.flush()
            with pytest.raises(StagingError, match="failed"):
                stand.charge.delay(2)
            await session.rollback()
            stand.charge.delay(3)
            await session.commit()

    stand.run(main)
    assert stand.sent() == [3]


def test_what_the_flush_at_commit_sends_is_part_of_the_transaction(stand: Async) -> None:
    def send(*_: Any) -> None:
        stand.charge.delay(1)

    def send_late(session: Session, _: Any) -> None:
        stand.charge.delay(2)

    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        event.listen(Order, "after_insert", send)
        try:
            async with stand.outbox.begin(maker) as session:
                event.listen(session.sync_session, "after_flush_postexec", send_late)
                event.listen(session.sync_session, "before_commit", lambda _: stand.charge.delay(3))
                session.add(Order(name="a"))
            with suppress(BoomError):
                async with stand.outbox.begin(maker) as session:
                    session.add(Order(name="b"))
                    await session.flush()
                    raise BoomError
        finally:
            event.remove(Order, "after_insert", send)

    stand.run(main)
    assert sorted(stand.sent()) == [1, 2, 3]


def test_a_connection_has_its_own_savepoints(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        engine = maker.kw["bind"]
        async with stand.outbox.begin(engine) as connection:
            stand.charge.delay(1)
            with suppress(BoomError):
                async with connection.begin_nested():
                    stand.charge.delay(2)
                    raise BoomError
            async with connection.begin_nested():
                stand.charge.delay(3)
            stand.charge.delay(4)
        async with engine.connect() as connection, stand.outbox.acapture(connection):
            with pytest.raises(StagingError, match="begin"):
                stand.charge.delay(5)
            async with connection.begin():
                stand.charge.delay(6)
            transaction = await connection.begin()
            stand.charge.delay(7)
            await transaction.rollback()
        with suppress(BoomError):
            async with stand.outbox.begin(engine):
                stand.charge.delay(8)
                raise BoomError

    stand.run(main)
    assert sorted(stand.sent()) == [1, 3, 4, 6]


def test_a_connections_commit_releases_the_savepoints_that_are_open(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker.kw["bind"].connect() as connection:
            await connection.begin()
            async with stand.outbox.acapture(connection):
                stand.charge.delay(1)
                await connection.begin_nested()
                stand.charge.delay(2)
                await connection.begin_nested()
                stand.charge.delay(3)
            await connection.commit()

    stand.run(main)
    assert sorted(stand.sent()) == [1, 2, 3]


def test_a_connections_savepoint_takes_those_within_it_along(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        for number in (0, 10):
            async with maker.kw["bind"].begin() as connection, stand.outbox.acapture(connection):
                stand.charge.delay(number + 1)
                outer = await connection.begin_nested()
                stand.charge.delay(number + 2)
                await connection.begin_nested()
                stand.charge.delay(number + 3)
                with pytest.warns(SAWarning, match="deassociated"):
                    await (outer.rollback() if number else outer.commit())
                stand.charge.delay(number + 4)

    stand.run(main)
    assert sorted(stand.sent()) == [1, 2, 3, 4, 11, 14]


def test_a_session_on_an_outer_connection_leaves_the_end_to_it(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        for number, end in enumerate(("rollback", "commit")):
            async with maker.kw["bind"].connect() as connection:
                outer = await connection.begin()
                mode: Any = "create_savepoint"
                session = AsyncSession(connection, join_transaction_mode=mode)
                async with session, stand.outbox.acapture(session):
                    stand.charge.delay(number)
                    await session.commit()
                await getattr(outer, end)()

    stand.run(main)
    assert stand.sent() == [1]


def test_a_conflict_is_raised_at_the_end_of_the_block_and_nothing_of_it_stays(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with stand.outbox.begin(maker, workflow_id="w"):
            stand.charge.delay(1)

        async def other() -> None:
            async with stand.outbox.begin(maker, workflow_id="w") as session:
                session.add(Order(name="a"))
                stand.charge.delay(2)

        with pytest.raises(DispatchKeyConflict):
            await other()

    stand.run(main)
    assert stand.sent() == [1]
    assert stand.shop.orders() == set()


def test_a_transaction_whose_rows_are_refused_cannot_be_committed_without_them(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with stand.outbox.begin(maker, workflow_id="w"):
            stand.charge.delay(1)

        async def other(session: AsyncSession) -> None:
            async with stand.outbox.acapture(session, workflow_id="w"):
                stand.charge.delay(2)
                stand.charge.delay(3)

        async with maker() as session:
            session.add(Order(name="a"))
            with pytest.raises(DispatchKeyConflict):
                await other(session)
            with pytest.raises(DispatchKeyConflict):
                await session.commit()
            await session.rollback()
            session.add(Order(name="b"))
            await session.commit()

    stand.run(main)
    assert stand.sent() == [1]
    assert stand.shop.orders() == {"b"}


def test_a_cancelled_task_rolls_back(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        sent = asyncio.Event()

        async def endless() -> None:
            async with stand.outbox.begin(maker):
                stand.charge.delay(1)
                sent.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(endless())
        await sent.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    stand.run(main)
    assert stand.sent() == []


# -- tasks, threads, nesting --------------------------------------------------------------------------------------


def test_child_tasks_and_threads_that_asyncio_starts_belong_to_the_block(lite: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async def child(number: int) -> None:
            await asyncio.sleep(0)
            lite.charge.delay(number)

        async with lite.outbox.begin(maker) as session:
            await asyncio.gather(child(1), child(2))
            await asyncio.to_thread(lite.charge.delay, 3)
            await session.run_sync(lambda _: lite.charge.delay(4))

    lite.run(main)
    assert sorted(lite.sent()) == [1, 2, 3, 4]


def test_a_child_task_that_outlives_the_block_is_told(lite: Async) -> None:
    told: list[Exception] = []

    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        over = asyncio.Event()

        async def child() -> None:
            await over.wait()
            try:
                lite.charge.delay(1)
            except StagingError as error:
                told.append(error)

        async with lite.outbox.begin(maker):
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        over.set()
        await task

    lite.run(main)
    assert "after the end of the capture" in str(told[0])
    assert lite.sent() == []


def test_blocks_of_tasks_side_by_side_do_not_meet(stand: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async def request(number: int) -> None:
            with suppress(BoomError):
                async with stand.outbox.begin(maker, namespace=f"n{number}"):
                    await asyncio.sleep(0)
                    stand.charge.delay(number)
                    if number % 2:
                        raise BoomError

        await asyncio.gather(*(request(number) for number in range(10)))

    stand.run(main)
    assert sorted((row["namespace"], number) for row, number in zip(stand.shop.rows(), stand.sent(), strict=True)) == [
        (f"n{number}", number) for number in (0, 2, 4, 6, 8)
    ]


def test_captures_nest_and_the_innermost_counts(lite: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with lite.outbox.begin(maker, namespace="outer") as session:
            lite.charge.delay(1)
            async with lite.outbox.acapture(session, namespace="inner"):
                lite.charge.delay(2)
            lite.charge.delay(3)

    lite.run(main)
    assert {number: row["namespace"] for row, number in zip(lite.shop.rows(), lite.sent(), strict=True)} == {
        1: "outer",
        2: "inner",
        3: "outer",
    }


def test_threads_of_a_block_number_their_rows_together(lite: Async) -> None:
    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with lite.outbox.begin(maker, workflow_id="w"):
            await asyncio.gather(*(asyncio.to_thread(lite.charge.delay, number) for number in range(40)))

    lite.run(main)
    assert sorted(row["ordinal"] for row in lite.shop.rows()) == [*range(40)]


def test_a_second_database_in_the_transaction_is_refused(lite: Async, tmp_path: Path) -> None:
    outbox, charge = lite.outbox, lite.charge

    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        engine = maker.kw["bind"]
        async with lite.engine_on(tmp_path / "elsewhere.db") as other:
            async with other.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            maker.configure(binds={Order: other})
            with pytest.raises(StagingError, match="bind="):
                await with_order(maker)
            async with maker() as session, session.begin():
                session.add(Order(name="b"))
                await session.flush()
                with pytest.raises(StagingError, match="bind="):
                    await outbox.astage(session, charge.s(2))
                await outbox.astage(session, charge.s(3), bind=engine.sync_engine)

    async def with_order(maker: async_sessionmaker[AsyncSession]) -> None:
        async with outbox.begin(maker) as session:
            session.add(Order(name="a"))
            charge.delay(1)

    lite.run(main)
    assert lite.sent() == [3]


def test_a_generator_that_is_closed_in_another_task_ends_its_block(lite: Async) -> None:
    """As the teardown of a FastAPI dependency may be."""

    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async def dependency() -> AsyncIterator[AsyncSession]:
            async with lite.outbox.begin(maker) as session:
                yield session

        generator = dependency()
        session = await anext(generator)
        session.add(Order(name="a"))
        lite.charge.delay(1)

        async def teardown() -> None:
            with suppress(StopAsyncIteration):
                await anext(generator)

        await asyncio.create_task(teardown())

    lite.run(main)
    assert lite.sent() == [1]
    assert lite.shop.orders() == {"a"}


def test_sync_and_async_are_told_apart(lite: Async) -> None:
    outbox, charge = lite.outbox, lite.charge

    async def main(maker: async_sessionmaker[AsyncSession]) -> None:
        async with maker() as session:
            with pytest.raises(StagingError, match="use astage"):
                outbox.stage(session, charge.s(1))
            with pytest.raises(StagingError, match="acapture"):
                outbox.capture(session).__enter__()
        with pytest.raises(StagingError, match="async with"), outbox.begin(maker):
            pass
        with pytest.raises(StagingError, match="async with"), outbox.begin(maker.__call__):
            pass
        with lite.shop.maker() as sync:
            with pytest.raises(StagingError, match="use stage"):
                await outbox.astage(sync, charge.s(1))
            with pytest.raises(StagingError, match="capture"):
                await outbox.acapture(sync).__aenter__()
        with pytest.raises(StagingError, match="write `with`"):
            async with outbox.begin(lite.shop.maker):
                pass
        for given in (None, object(), maker, maker.kw["bind"]):
            with pytest.raises(StagingError, match="nothing can be staged"):
                await outbox.astage(given, charge.s(1))
        with pytest.raises(StagingError, match="not connected"):
            await outbox.acapture(maker.kw["bind"].connect()).__aenter__()

    lite.run(main)
    assert lite.sent() == []


def test_the_wake_goes_out_at_the_commit(postgres_url: str) -> None:
    import psycopg

    dsn = sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    for shop in opened(postgres_url):
        stand = Async(shop, sa.make_url(postgres_url).set(drivername="postgresql+asyncpg"))
        with psycopg.connect(dsn, autocommit=True) as listener:
            listener.execute(f'LISTEN "{channel_name(shop.outbox.tables)}"')

            async def main(maker: async_sessionmaker[AsyncSession]) -> None:
                async with stand.outbox.begin(maker):  # noqa: B023 - called in this round
                    stand.charge.delay(1)  # noqa: B023

            stand.run(main)
            assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1
