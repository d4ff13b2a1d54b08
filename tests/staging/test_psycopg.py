"""psycopg's own connections, without SQLAlchemy in the shop: the row lives and dies with their transaction."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import pq
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from outbox_relay import DispatchKeyConflict, StagingError, StoreError
from outbox_relay.store.wake import channel_name
from tests.staging.shop import BoomError, Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


@pytest.fixture
def shop(pg_shop: Shop) -> Shop:
    return pg_shop


@pytest.fixture
def dsn(postgres_url: str) -> str:
    return sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    connection = psycopg.connect(dsn)
    yield connection
    connection.close()


def test_a_row_lives_and_dies_with_the_transaction(shop: Shop, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO orders (name) VALUES ('a')")
        staged = shop.outbox.stage(connection, shop.charge.s(1))
    with suppress(BoomError), psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO orders (name) VALUES ('b')")
        shop.outbox.stage(connection, shop.charge.s(2))
        raise BoomError
    assert (shop.row()["id"], shop.row()["task_id"]) == (staged.row_id, staged.task_id)
    assert shop.orders() == {"a"}


def test_a_row_is_the_same_as_one_that_was_staged_by_sqlalchemy(shop: Shop, connection: Any) -> None:
    def signature() -> Any:
        instant = datetime(2040, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
        return shop.anything.s("ü\x00☃", a=[1, None]).set(
            eta=instant, expires=instant + timedelta(days=1), priority=3, task_id="same"
        )

    where = {"namespace": "acme", "workflow_id": "w", "node": "box"}
    with shop.maker() as session, session.begin():
        shop.outbox.stage(session, signature(), ordinal=0, **where)
    with connection.transaction():
        shop.outbox.stage(connection, signature(), ordinal=1, **where)
    first, second = ({**row} for row in shop.rows())
    differ = {name for name in first if first[name] != second[name]}
    assert differ == {"id", "ordinal", "dispatch_key", "created_at"}


def test_savepoints(shop: Shop, connection: Any) -> None:
    with connection.transaction():
        before = shop.outbox.stage(connection, shop.charge.s(1))
        with suppress(BoomError), connection.transaction():
            shop.outbox.stage(connection, shop.charge.s(2))
            raise BoomError
        with connection.transaction():
            after = shop.outbox.stage(connection, shop.charge.s(3))
        with connection.transaction() as inner:
            shop.outbox.stage(connection, shop.charge.s(4))
            raise psycopg.Rollback(inner)
    assert [row["task_id"] for row in shop.rows()] == [before.task_id, after.task_id]


def test_a_released_savepoint_shares_the_fate_of_the_transaction(shop: Shop, connection: Any) -> None:
    with suppress(BoomError), connection.transaction():
        with connection.transaction():
            shop.outbox.stage(connection, shop.charge.s(1))
        raise BoomError
    assert shop.rows() == []


def test_many_at_once(shop: Shop, connection: Any) -> None:
    with connection.transaction():
        staged = shop.outbox.stage_many(connection, (shop.charge.s(n) for n in range(2500)), workflow_id="w")
    rows = sorted(shop.rows(), key=lambda row: row["ordinal"])
    assert [one.task_id for one in staged] == [row["task_id"] for row in rows]
    with connection.transaction():
        again = shop.outbox.stage_many(connection, [shop.charge.s(n) for n in range(3)], workflow_id="w")
    assert [one.task_id for one in again] == [one.task_id for one in staged[:3]]
    assert not any(one.created for one in again)


def test_a_conflict_leaves_the_transaction_usable(shop: Shop, connection: Any) -> None:
    with connection.transaction():
        shop.outbox.stage(connection, shop.charge.s(1), dispatch_key="k")
        with pytest.raises(DispatchKeyConflict):
            shop.outbox.stage(connection, shop.charge.s(2), dispatch_key="k")
        connection.execute("INSERT INTO orders (name) VALUES ('a')")
    assert len(shop.rows()) == 1
    assert shop.orders() == {"a"}


def test_what_existing_code_sends_is_captured(shop: Shop, dsn: str) -> None:
    with psycopg.connect(dsn) as connection, shop.outbox.capture(connection, namespace="acme"):
        sent = shop.charge.delay(1)
        with suppress(BoomError), connection.transaction():
            shop.charge.delay(2)
            raise BoomError
    assert (shop.row()["task_id"], shop.row()["namespace"]) == (sent.id, "acme")


# -- whether there is a transaction -------------------------------------------------------------------------------


def test_autocommit_is_no_transaction_but_a_block_in_it_is(shop: Shop, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        with pytest.raises(StagingError, match="outside a transaction"):
            shop.outbox.stage(connection, shop.charge.s(1))
        with connection.transaction():
            kept = shop.outbox.stage(connection, shop.charge.s(2))
    assert shop.row()["task_id"] == kept.task_id


def test_commit_as_you_go(shop: Shop, connection: Any) -> None:
    shop.outbox.stage(connection, shop.charge.s(1))
    connection.rollback()
    kept = shop.outbox.stage(connection, shop.charge.s(2))
    connection.commit()
    assert shop.row()["task_id"] == kept.task_id


def test_a_failed_transaction_says_so(shop: Shop, connection: Any) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT * FROM nowhere")
    with pytest.raises(StagingError, match="failed"):
        shop.outbox.stage(connection, shop.charge.s(1))
    connection.rollback()
    shop.outbox.stage(connection, shop.charge.s(2))
    connection.commit()
    assert len(shop.rows()) == 1


def test_closed_and_lost_connections_are_refused(shop: Shop, dsn: str) -> None:
    lost = psycopg.connect(dsn)
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
        other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": lost.info.backend_pid})
    with suppress(psycopg.OperationalError):
        lost.execute("SELECT 1")
    closed = psycopg.connect(dsn)
    closed.close()
    for connection in (closed, lost):
        with pytest.raises(StagingError, match="closed or lost"):
            shop.outbox.stage(connection, shop.charge.s(1))


needs_pipeline = pytest.mark.skipif(not pq.version() >= 140000, reason="libpq before 14 has no pipelines")


@needs_pipeline
def test_in_a_pipeline(shop: Shop, dsn: str) -> None:
    with psycopg.connect(dsn) as connection, connection.pipeline():
        kept = shop.outbox.stage(connection, shop.charge.s(1))
        connection.execute("INSERT INTO orders (name) VALUES ('a')")
    with suppress(BoomError), psycopg.connect(dsn) as connection, connection.pipeline():
        connection.execute("INSERT INTO orders (name) VALUES ('b')")
        shop.outbox.stage(connection, shop.charge.s(2))
        raise BoomError
    with psycopg.connect(dsn, autocommit=True) as connection, connection.pipeline():
        connection.execute("INSERT INTO orders (name) VALUES ('c')")
        with pytest.raises(StagingError, match="pipeline"):
            shop.outbox.stage(connection, shop.charge.s(3))
    assert shop.row()["task_id"] == kept.task_id


# -- whatever the connection is like ------------------------------------------------------------------------------


def test_factories_of_the_connection_do_not_matter(shop: Shop, dsn: str) -> None:
    class Own(psycopg.ClientCursor[Any]):
        def execute(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("the caller's cursor class is the caller's")

    with psycopg.connect(dsn, row_factory=dict_row, cursor_factory=Own) as connection:
        shop.outbox.stage(connection, shop.charge.s(1), namespace="acme")
        shop.outbox.stage_many(connection, [shop.charge.s(2), shop.charge.s(3)])
    assert len(shop.rows()) == 3


def test_a_pool_lends_connections(shop: Shop, dsn: str) -> None:
    with ConnectionPool(dsn, min_size=1, max_size=2, open=True) as pool:
        with pool.connection() as connection:
            kept = shop.outbox.stage(connection, shop.charge.s(1))
        with suppress(BoomError), pool.connection() as connection:
            shop.outbox.stage(connection, shop.charge.s(2))
            raise BoomError
    assert shop.row()["task_id"] == kept.task_id


def test_without_tables_it_says_how_to_make_them(shop: Shop, connection: Any) -> None:
    shop.outbox.tables.metadata.drop_all(shop.engine)
    with pytest.raises(StoreError, match="outbox migrate"):
        shop.outbox.stage(connection, shop.charge.s(1))


def test_the_drivers_own_errors_come_through(shop: Shop, dsn: str) -> None:
    """Who retries after a serialization failure or a lock timeout looks for psycopg's errors."""
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        shop.outbox.stage(one, shop.charge.s(1), dispatch_key="k")
        other.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            shop.outbox.stage(other, shop.charge.s(1), dispatch_key="k")
        other.rollback()


def test_the_wake_goes_out_at_the_commit_and_not_before(shop: Shop, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener, psycopg.connect(dsn) as connection:
        listener.execute(f'LISTEN "{channel_name(shop.outbox.tables)}"')
        shop.outbox.stage(connection, shop.charge.s(1))
        assert list(listener.notifies(timeout=0.2, stop_after=1)) == []
        connection.commit()
        assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1


def test_two_phase(shop: Shop, connection: Any) -> None:
    """A notification would make PostgreSQL refuse to prepare the transaction."""
    if connection.execute("SHOW max_prepared_transactions").fetchone()[0] == "0":
        pytest.skip("this server has max_prepared_transactions = 0")
    connection.rollback()
    connection.tpc_begin(connection.xid(1, "x", "y"))
    shop.outbox.stage(connection, shop.charge.s(1))
    connection.tpc_prepare()
    with pytest.raises(StagingError, match="prepared"):
        shop.outbox.stage(connection, shop.charge.s(2))
    connection.tpc_commit()
    assert len(shop.rows()) == 1


# -- async ----------------------------------------------------------------------------------------------------------


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_async_connections(shop: Shop, dsn: str) -> None:
    kept = []

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            kept.append(await shop.outbox.astage(connection, shop.charge.s(1), namespace="acme"))
            with suppress(BoomError):
                async with connection.transaction():
                    await shop.outbox.astage(connection, shop.charge.s(2))
                    raise BoomError
            kept.extend(await shop.outbox.astage_many(connection, [shop.charge.s(3), shop.charge.s(4)]))
        with suppress(BoomError):
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await shop.outbox.astage(connection, shop.charge.s(5))
                raise BoomError

    run(main)
    assert {row["task_id"] for row in shop.rows()} == {one.task_id for one in kept}


def test_async_autocommit_is_no_transaction(shop: Shop, dsn: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            with pytest.raises(StagingError, match="outside a transaction"):
                await shop.outbox.astage(connection, shop.charge.s(1))
            async with connection.transaction():
                await shop.outbox.astage(connection, shop.charge.s(1))

    run(main)
    assert len(shop.rows()) == 1


def test_an_async_pool_lends_connections(shop: Shop, dsn: str) -> None:
    async def main() -> None:
        async with (
            AsyncConnectionPool(dsn, min_size=1, max_size=2, open=False) as pool,
            pool.connection() as connection,
        ):
            await shop.outbox.astage(connection, shop.charge.s(1))

    run(main)
    assert len(shop.rows()) == 1


def test_sync_and_async_are_told_apart(shop: Shop, connection: Any, dsn: str) -> None:
    async def main() -> None:
        with pytest.raises(StagingError, match="not async: use stage"):
            await shop.outbox.astage(connection, shop.charge.s(1))
        async with await psycopg.AsyncConnection.connect(dsn) as other:
            with pytest.raises(StagingError, match="use astage"):
                shop.outbox.stage(other, shop.charge.s(1))
            with pytest.raises(StagingError, match="astage"):
                async with shop.outbox.acapture(other):
                    pass

    run(main)
