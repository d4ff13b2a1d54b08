"""Engines: what a URL may be, what a database that is away looks like, honest transactions on SQLite."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.errors import StoreAway, StoreError
from outbox_relay.settings import Settings
from outbox_relay.store.engine import Database, configure_sqlite, open_engine
from outbox_relay.store.migrate import migrate
from outbox_relay.store.outbox import Store
from outbox_relay.store.schema import SCHEMA_VERSION, Instant, build
from outbox_relay.store.sql import values
from outbox_relay.store.staging import insert_rows
from tests.store.bench import LEASE, Bench, new_row
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.servers import Postgres


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mysql+pymysql://localhost/shop", "does not work on 'mysql'"),
        ("nonsense", "cannot be used"),
        ("oracle://x", "does not work on 'oracle'"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_a_reason(url: str, text: str) -> None:
    with pytest.raises(StoreError, match=text):
        open_engine(url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg2", "postgresql+asyncpg", "postgresql+psycopg"])
def test_whatever_driver_the_shop_uses_the_outbox_uses_psycopg(scheme: str) -> None:
    assert open_engine(f"{scheme}://localhost/shop").dialect.driver == "psycopg"


def test_a_store_is_opened_as_the_settings_say(sqlite_url: str) -> None:
    settings = Settings(name="shop", database_url=sqlite_url, table_prefix="ob_")
    store = Store.open(settings)
    store.migrate()
    assert store.check_schema() == SCHEMA_VERSION
    assert store.tables.row.name == "ob_row"
    store.close()


def test_a_server_that_is_not_there_is_away() -> None:
    store = Store(open_engine("postgresql://nobody@127.0.0.1:1/none"), build())
    with pytest.raises(StoreAway):
        store.now()
    with pytest.raises(StoreAway, match="refused"):
        migrate(store.engine)


def test_a_file_that_cannot_be_opened_is_away() -> None:
    store = Store(open_engine("sqlite:////nonexistent/folder/outbox.db"), build())
    with pytest.raises(StoreAway, match="unable to open"):
        store.now()


def test_a_mistake_in_a_statement_is_no_outage(bench: Bench) -> None:
    database = Database(bench.engine, bench.tables)
    with pytest.raises(sa.exc.DBAPIError), database.begin() as connection:
        connection.execute(sa.text("SELECT nonsense()"))


def test_a_server_that_takes_no_writes_is_away_and_its_connections_are_dropped(
    postgres: Postgres, postgres_bench: Bench
) -> None:
    """After a failover it may be the old primary, which answers for as long as it is asked."""
    bench = postgres_bench
    bench.stage(1)
    database = bench.engine.url.database
    assert database is not None
    postgres.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on')
    postgres.terminate_sessions(database)
    with pytest.raises(StoreAway):
        bench.store.now()  # it finds out that its session has ended
    with pytest.raises(StoreAway, match="read-only"):
        bench.claim()
    postgres.execute(f'ALTER DATABASE "{database}" RESET default_transaction_read_only')
    assert len(bench.claim()) == 1  # over a new connection: the old one would still be read-only


def test_a_server_that_is_gone_without_a_word_is_found_out_soon(postgres_bench: Bench) -> None:
    engine = open_engine(postgres_bench.engine.url)
    with engine.connect() as connection:
        number = connection.connection.driver_connection.fileno()  # type: ignore[union-attr]
        with socket.socket(fileno=os.dup(number)) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    engine.dispose()


def test_what_the_url_says_of_a_connection_stands(postgres_bench: Bench) -> None:
    url = postgres_bench.engine.url.update_query_dict({"keepalives_idle": "33", "application_name": "mine"})
    engine = open_engine(url)
    with engine.connect() as connection:
        number = connection.connection.driver_connection.fileno()  # type: ignore[union-attr]
        with socket.socket(fileno=os.dup(number)) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 33
        assert connection.exec_driver_sql("SHOW application_name").scalar() == "mine"
    engine.dispose()


def test_sessions_that_are_ended_cost_one_call(postgres: Postgres, postgres_bench: Bench) -> None:
    bench = postgres_bench
    bench.stage(3)
    database = bench.engine.url.database
    assert database is not None
    postgres.terminate_sessions(database)
    with pytest.raises(StoreAway):
        bench.claim()
    assert len(bench.claim()) == 3


@pytest.mark.owns_server
def test_a_server_that_comes_back_is_found_again(postgres: Postgres, postgres_url: str) -> None:
    bench = Bench(postgres_url)
    bench.stage(3)
    postgres.stop()
    with pytest.raises(StoreAway):
        bench.claim()
    with pytest.raises(StoreAway):
        bench.store.now()
    postgres.start()
    eventually(lambda: len(bench.claim()) == 3)
    bench.close()


def test_a_pool_that_is_used_up_is_away_not_a_riddle(bench: Bench) -> None:
    engine = sa.create_engine(bench.engine.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    store = Store(engine, bench.tables)
    with engine.connect(), pytest.raises(StoreAway, match="QueuePool"):
        store.now()
    engine.dispose()


def test_timeouts_hold_for_the_session(postgres_bench: Bench) -> None:
    with postgres_bench.engine.connect() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in ("lock_timeout", "idle_in_transaction_session_timeout", "application_name")
        ]
    assert shown == ["5s", "10s", "outbox relay"]


def test_behind_a_pooler_nothing_is_prepared_and_timeouts_last_for_a_transaction(postgres_bench: Bench) -> None:
    """The mark that a pooler leaves is set by hand: what follows from it is what is held here."""
    engine = open_engine(postgres_bench.url)

    @sa.event.listens_for(engine, "checkout")
    def pooled(dbapi_connection: object, record: object, proxy: object) -> None:
        record.info["outbox_pooled"] = True  # type: ignore[attr-defined]

    with engine.connect() as connection:
        connection.exec_driver_sql("SET lock_timeout = 0")
        connection.commit()
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "5s"
        connection.commit()
    engine.dispose()


def test_sqlite_transactions_begin_when_they_say(sqlite_bench: Bench) -> None:
    with sqlite_bench.engine.connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        busy = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        assert (mode, busy) == ("wal", 30_000)
        assert connection.connection.driver_connection.in_transaction  # type: ignore[union-attr]
    with sqlite_bench.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SELECT 1")
        assert not connection.connection.driver_connection.in_transaction  # type: ignore[union-attr]


def test_a_shops_own_sqlite_engine_is_configured_once(sqlite_bench: Bench) -> None:
    engine = sa.create_engine(sqlite_bench.url)
    configure_sqlite(engine)
    configure_sqlite(engine)
    with engine.connect() as connection, connection.begin() as transaction:
        with connection.begin_nested():
            insert_rows(connection, sqlite_bench.tables, [new_row("k")], wake=False, open_namespaces=True)
        transaction.rollback()
    assert sqlite_bench.statuses() == {}
    engine.dispose()


def test_relays_and_stagers_on_one_sqlite_file_do_not_lock_each_other_out(sqlite_bench: Bench) -> None:
    bench = sqlite_bench

    def stage(number: int) -> int:
        engine = open_engine(bench.url)
        for turn in range(10):
            with engine.begin() as connection:
                connection.execute(sa.select(sa.func.count()).select_from(bench.tables.row))  # read, then write
                rows = [new_row(f"{number}-{turn}-{one}") for one in range(5)]
                insert_rows(connection, bench.tables, rows, wake=False, open_namespaces=True)
        engine.dispose()
        return 50

    def relay(_: int) -> list[int]:
        store, claimed = bench.another(), []
        while staging[0] or store.counts()["due"]:
            claimed += [row.id for row in bench.claim(20, LEASE, store)]
            store.reset_watermark()
        store.close()
        return claimed

    staging = [True]
    with ThreadPoolExecutor(6) as pool:
        relays = [pool.submit(relay, number) for number in range(2)]
        assert sum(pool.map(stage, range(4))) == 200
        staging[0] = False
        claimed = [row_id for one in relays for row_id in one.result(60)]
    assert len(claimed) == len(set(claimed)) == 200


def test_a_naive_instant_is_refused(bench: Bench) -> None:
    with pytest.raises(sa.exc.StatementError, match="time zone"):
        bench.set(1, visible_after=datetime(2026, 1, 1))  # noqa: DTZ001


def test_instants_come_back_aware_and_in_utc() -> None:
    dialect = sa.create_engine("sqlite://").dialect
    assert Instant().process_result_value(datetime(2026, 1, 1), dialect) == datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: DTZ001
    assert Instant().process_result_value(None, dialect) is None


@pytest.mark.parametrize("instant", ["infinity", "-infinity", "4000-01-01 BC", "20000-01-01", "0001-01-01"])
def test_an_instant_that_python_does_not_know_hides_no_other_row(postgres_bench: Bench, instant: str) -> None:
    first, odd = postgres_bench.stage(2)
    row = postgres_bench.tables.row
    far = sa.cast(sa.literal(instant), sa.DateTime(timezone=True))
    with postgres_bench.engine.begin() as connection:
        connection.execute(sa.update(row).where(row.c.id == odd.row_id).values(visible_after=far, expires_at=far))
    assert {one.id for one in postgres_bench.store.ls()} == {first.row_id, odd.row_id}
    (found,) = postgres_bench.store.find(str(odd.row_id))
    assert found.visible_after.astimezone() != found.created_at
    assert postgres_bench.store.counts()["pending"] == 2
    assert {one.id for one in postgres_bench.claim()} <= {first.row_id, odd.row_id}


def test_a_value_that_json_does_not_carry_is_refused_before_it_reaches_sqlite() -> None:
    with pytest.raises(TypeError, match="bytes"):
        values("sqlite", "x", body=[b"\x00"])
