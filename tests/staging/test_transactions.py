"""A task runs if the caller's transaction commits, and only then."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_relay import Outbox, StagingError
from tests.staging.shop import Base, BoomError, Order, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Postgres


def test_a_committed_task_is_there(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        session.add(Order(name="a"))
        staged = shop.outbox.stage(session, shop.charge.s(1))
    row = shop.row()
    assert (row["id"], row["task_id"], row["status"]) == (staged.row_id, staged.task_id, "pending")
    assert staged.created
    assert staged.dispatch_key == staged.task_id
    assert shop.orders() == {"a"}


def test_a_rolled_back_task_is_not(shop: Shop) -> None:
    with suppress(BoomError), shop.maker() as session, session.begin():
        session.add(Order(name="a"))
        shop.outbox.stage(session, shop.charge.s(1))
        raise BoomError
    assert shop.rows() == []
    assert shop.orders() == set()


def test_a_rolled_back_savepoint_takes_its_tasks_with_it(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        before = shop.outbox.stage(session, shop.charge.s(1))
        with suppress(BoomError), session.begin_nested():
            shop.outbox.stage(session, shop.charge.s(2))
            raise BoomError
        after = shop.outbox.stage(session, shop.charge.s(3))
    assert [row["task_id"] for row in shop.rows()] == [before.task_id, after.task_id]


def test_a_savepoint_that_is_released_shares_the_fate_of_the_transaction(shop: Shop) -> None:
    """Committing a nested transaction commits nothing."""
    with suppress(BoomError), shop.maker() as session, session.begin():
        with session.begin_nested():
            shop.outbox.stage(session, shop.charge.s(1))
        raise BoomError
    assert shop.rows() == []


def test_a_session_is_used_again_after_a_failed_flush(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        session.add(Order(name="taken"))
    with shop.maker() as session:
        shop.outbox.stage(session, shop.charge.s(1))
        session.add(Order(name="taken"))
        with pytest.raises(IntegrityError):
            session.flush()
        session.rollback()
        second = shop.outbox.stage(session, shop.charge.s(2))
        session.commit()
    assert shop.row()["task_id"] == second.task_id


def test_staging_does_not_flush_the_callers_objects(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        order = Order(name="a")
        session.add(order)
        shop.outbox.stage(session, shop.charge.s(1))
        assert sa.inspect(order).pending


def test_a_core_connection_is_as_good_as_a_session(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        shop.outbox.stage(connection, shop.charge.s(1))
    with suppress(BoomError), shop.engine.begin() as connection:
        shop.outbox.stage(connection, shop.charge.s(2))
        raise BoomError
    with shop.engine.connect() as connection:  # commit as you go
        shop.outbox.stage(connection, shop.charge.s(3))
        connection.commit()
        shop.outbox.stage(connection, shop.charge.s(4))
        connection.rollback()
    assert len(shop.rows()) == 2


def test_a_scoped_session_is_the_session_of_its_scope(shop: Shop) -> None:
    scoped = scoped_session(shop.maker)
    shop.outbox.stage(scoped, shop.charge.s(1))
    scoped.rollback()
    kept = shop.outbox.stage(scoped, shop.charge.s(2))
    scoped.commit()
    scoped.remove()
    assert shop.row()["task_id"] == kept.task_id


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint"])
def test_a_session_that_joins_an_outer_transaction_leaves_the_end_to_it(shop: Shop, mode: str) -> None:
    for end in ("rollback", "commit"):
        with shop.engine.connect() as connection:
            outer = connection.begin()
            with Session(connection, join_transaction_mode=mode) as session:  # type: ignore[arg-type]
                shop.outbox.stage(session, shop.charge.s(1))
                session.commit()
            getattr(outer, end)()
    assert len(shop.rows()) == 1


def test_a_session_that_controls_an_outer_transaction_ends_it(shop: Shop) -> None:
    for end, kept in (("rollback", 0), ("commit", 1)):
        with shop.engine.connect() as connection:
            connection.begin()
            with Session(connection, join_transaction_mode="control_fully") as session:
                shop.outbox.stage(session, shop.charge.s(1))
                getattr(session, end)()
        assert len(shop.rows()) == kept


def test_sessions_side_by_side_and_nested_keep_their_rows_apart(pg_shop: Shop) -> None:
    with suppress(BoomError), pg_shop.maker() as outer, outer.begin(), pg_shop.outbox.capture(outer):
        pg_shop.charge.delay(1)
        with pg_shop.outbox.begin(pg_shop.maker) as inner:
            assert inner is not outer
            kept = pg_shop.charge.delay(2)
        pg_shop.charge.delay(3)
        raise BoomError
    assert pg_shop.row()["task_id"] == kept.id


def test_savepoints_within_savepoints(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        with suppress(BoomError), session.begin_nested():
            shop.outbox.stage(session, shop.charge.s(1))
            with session.begin_nested():
                shop.outbox.stage(session, shop.charge.s(2))
            raise BoomError
        with session.begin_nested():
            kept = shop.outbox.stage(session, shop.charge.s(3))
            with suppress(BoomError), session.begin_nested():
                shop.outbox.stage(session, shop.charge.s(4))
                raise BoomError
    assert shop.row()["task_id"] == kept.task_id


# -- no transaction -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["engine", "engine options", "connection options"])
def autocommit(request: pytest.FixtureRequest, pg_shop: Shop) -> Iterator[tuple[Shop, sa.Connection]]:
    shop = pg_shop
    engine = shop.engine
    if request.param == "engine":
        engine = sa.create_engine(shop.url, isolation_level="AUTOCOMMIT")
    elif request.param == "engine options":
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if request.param == "connection options":
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        yield shop, connection
    if engine is not shop.engine:
        engine.dispose()


def test_autocommit_is_no_transaction(autocommit: tuple[Shop, sa.Connection]) -> None:
    shop, connection = autocommit
    with pytest.raises(StagingError, match="outside a transaction"):
        shop.outbox.stage(connection, shop.charge.s(1))
    with Session(connection) as session, pytest.raises(StagingError, match="outside a transaction"):
        shop.outbox.stage(session, shop.charge.s(1))
    assert shop.rows() == []


def test_autocommit_on_sqlite_is_no_transaction(sqlite_url: str, lite_shop: Shop) -> None:
    shop = lite_shop
    plain = sa.create_engine(sqlite_url, isolation_level="AUTOCOMMIT")
    with plain.connect() as connection, pytest.raises(StagingError, match="outside a transaction"):
        shop.outbox.stage(connection, shop.charge.s(1))
    plain.dispose()
    assert shop.rows() == []


def test_what_is_accepted_is_what_a_rollback_undoes(shop: Shop, database_url: str) -> None:
    """Whatever the engine is like: either the row goes with the rollback, or staging was refused."""
    levels = ["AUTOCOMMIT", "SERIALIZABLE"] + (["REPEATABLE READ"] if database_url.startswith("postgresql") else [])
    plain = [sa.create_engine(database_url), *(sa.create_engine(database_url, isolation_level=one) for one in levels)]
    refused = 0
    for engine in plain:
        with engine.connect() as connection:
            try:
                shop.outbox.stage(connection, shop.charge.s(1))
            except StagingError:
                refused += 1
            connection.rollback()
        engine.dispose()
    assert shop.rows() == []
    assert refused == 1


def test_a_session_without_autobegin_has_to_begin(shop: Shop) -> None:
    with Session(shop.engine, autobegin=False) as session:
        with pytest.raises(StagingError, match="nothing can be staged"):
            shop.outbox.stage(session, shop.charge.s(1))
        with session.begin():
            shop.outbox.stage(session, shop.charge.s(1))
    assert len(shop.rows()) == 1


def test_a_session_whose_flush_has_failed_says_so(shop: Shop) -> None:
    with shop.maker() as session:
        session.add_all([Order(name="twice"), Order(name="twice")])
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(StagingError, match="rolled back"):
            shop.outbox.stage(session, shop.charge.s(1))


# -- SQLite's savepoints ------------------------------------------------------------------------------------------


def test_a_savepoint_without_begin_is_refused_with_the_recipe(sqlite_url: str, lite_shop: Shop) -> None:
    plain = sa.create_engine(sqlite_url)
    with Session(plain) as session:
        session.begin_nested()
        with pytest.raises(StagingError, match="configure_sqlite"):
            lite_shop.outbox.stage(session, lite_shop.charge.s(1))
    plain.dispose()
    assert lite_shop.rows() == []


def test_configured_sqlite_rolls_a_released_savepoint_back(sqlite_url: str, lite_shop: Shop) -> None:
    engine = sa.create_engine(sqlite_url)
    Outbox.configure_sqlite(engine)
    with engine.connect() as connection:
        outer = connection.begin()
        with connection.begin_nested():
            lite_shop.outbox.stage(connection, lite_shop.charge.s(1))
        outer.rollback()
    engine.dispose()
    assert lite_shop.rows() == []


def test_an_unconfigured_sqlite_serves_where_no_savepoint_is_used(sqlite_url: str, lite_shop: Shop) -> None:
    plain = sa.create_engine(sqlite_url)
    with suppress(BoomError), Session(plain) as session, session.begin():
        lite_shop.outbox.stage(session, lite_shop.charge.s(1))
        raise BoomError
    with Session(plain) as session, session.begin():
        lite_shop.outbox.stage(session, lite_shop.charge.s(2))
    plain.dispose()
    assert len(lite_shop.rows()) == 1


# -- more than one database ---------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path_factory.mktemp('second') / 'other.db'}")
    Outbox.configure_sqlite(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_a_second_database_in_the_transaction_is_refused(shop: Shop, elsewhere: sa.Engine) -> None:
    with Session(shop.engine, binds={Order: elsewhere}) as session:
        session.add(Order(name="a"))
        session.flush()
        with pytest.raises(StagingError, match="bind="):
            shop.outbox.stage(session, shop.charge.s(1))
    assert shop.rows() == []


def test_a_second_database_that_joins_later_is_refused(shop: Shop, elsewhere: sa.Engine) -> None:
    with Session(shop.engine, binds={Order: elsewhere}) as session:
        shop.outbox.stage(session, shop.charge.s(1))
        session.add(Order(name="a"))
        with pytest.raises(StagingError, match="bind="):
            session.flush()
        session.rollback()
        session.add(Order(name="b"))  # the next transaction has nothing staged, and may go where it likes
        session.commit()
    assert shop.rows() == []


def test_bind_says_which_database(shop: Shop, elsewhere: sa.Engine) -> None:
    with Session(elsewhere, binds={Order: elsewhere}) as session:
        session.add(Order(name="a"))
        session.flush()
        shop.outbox.stage(session, shop.charge.s(1), bind=shop.engine)
        session.commit()
    assert len(shop.rows()) == 1


def test_a_session_without_a_default_database_has_to_be_told(shop: Shop) -> None:
    with Session(binds={Order: shop.engine}) as session:
        with pytest.raises(StagingError, match="bind="):
            shop.outbox.stage(session, shop.charge.s(1))
        shop.outbox.stage(session, shop.charge.s(1), bind=shop.engine)
        session.commit()
    assert len(shop.rows()) == 1


def test_a_session_that_reads_from_a_replica_is_told_to_name_the_primary(shop: Shop, elsewhere: sa.Engine) -> None:
    """SQLAlchemy's documented way to use a replica sends all but a flush there."""
    shop.outbox.tables.metadata.create_all(elsewhere)

    class Routing(Session):
        def get_bind(self, *_: object, bind: sa.Engine | None = None, **__: object) -> sa.Engine:
            return bind or (shop.engine if self._flushing else elsewhere)

    with Routing() as session:
        session.add(Order(name="a"))
        session.flush()
        with pytest.raises(StagingError, match="bind="):
            shop.outbox.stage(session, shop.charge.s(1))
    with Routing() as session:
        session.add(Order(name="b"))
        shop.outbox.stage(session, shop.charge.s(2))  # on the replica, as far as one can know
        with pytest.raises(StagingError, match="bind="):
            session.commit()
    with Routing() as session:
        session.add(Order(name="c"))
        shop.outbox.stage(session, shop.charge.s(3), bind=shop.engine)
        session.commit()
    assert len(shop.rows()) == 1
    assert shop.orders() == {"c"}


def test_a_two_phase_session_may_span_two_databases(postgres: Postgres, pg_shop: Shop) -> None:
    if not _can_prepare(pg_shop):
        pytest.skip("this server has max_prepared_transactions = 0")
    name = postgres.create_database()
    other = sa.create_engine(postgres.url(name))
    Base.metadata.create_all(other)
    for end in ("rollback", "commit"):
        with Session(pg_shop.engine, binds={Order: other}, twophase=True) as session:
            session.add(Order(name=end))
            session.flush()
            pg_shop.outbox.stage(session, pg_shop.charge.s(1))
            getattr(session, end)()
    with Session(other) as session:
        assert set(session.scalars(sa.select(Order.name))) == {"commit"}
    assert len(pg_shop.rows()) == 1
    other.dispose()
    postgres.drop_database(name)


# -- two-phase ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepare", [True, False])
def test_two_phase_commit_works_and_wakes_nobody(postgres_url: str, pg_shop: Shop, prepare: bool) -> None:
    """A notification would make PostgreSQL refuse to prepare the transaction."""
    if not _can_prepare(pg_shop):
        pytest.skip("this server has max_prepared_transactions = 0")
    maker = sessionmaker(pg_shop.engine, twophase=True)
    with maker() as session:
        session.add(Order(name="a"))
        pg_shop.outbox.stage(session, pg_shop.charge.s(1))
        if prepare:
            session.prepare()
        session.commit()
    with pg_shop.engine.connect() as connection:
        transaction = connection.begin_twophase()
        pg_shop.outbox.stage(connection, pg_shop.charge.s(2))
        transaction.prepare()
        transaction.commit()
    assert len(pg_shop.rows()) == 2


def _can_prepare(shop: Shop) -> bool:
    with shop.engine.connect() as connection:
        return connection.exec_driver_sql("show max_prepared_transactions").scalar() != "0"


def test_a_prepared_transaction_takes_no_more_tasks(pg_shop: Shop) -> None:
    if not _can_prepare(pg_shop):
        pytest.skip("this server has max_prepared_transactions = 0")
    with Session(pg_shop.engine, twophase=True) as session:
        pg_shop.outbox.stage(session, pg_shop.charge.s(1))
        session.prepare()
        with pytest.raises(StagingError):
            pg_shop.outbox.stage(session, pg_shop.charge.s(2))
        session.rollback()


# -- other kinds of connection ------------------------------------------------------------------------------------


def test_other_kinds_of_connection_are_named(shop: Shop) -> None:
    for given, hint in (
        (shop.engine, "engine.begin"),
        (None, "Session"),
        (shop.maker, "Session"),
        (object(), "Session"),
        ("default", "Django"),
        ("postgresql://user:secret@host/shop", "^a URL is no connection: pass one of its connections$"),
    ):
        with pytest.raises(StagingError, match=hint):
            shop.outbox.stage(given, shop.charge.s(1))


def test_a_closed_connection_is_refused(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        pass
    with pytest.raises(StagingError, match="closed"):
        shop.outbox.stage(connection, shop.charge.s(1))
