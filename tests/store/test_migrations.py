"""Migrations: fresh, twice, side by side, bounded in their waiting, printable; and the schema that they make."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from outbox_relay.errors import StoreAway, StoreError
from outbox_relay.store.engine import open_engine
from outbox_relay.store.migrate import current, head, migrate, version_table
from outbox_relay.store.outbox import Store
from outbox_relay.store.schema import SCHEMA_VERSION, build
from outbox_relay.store.staging import insert_rows
from tests.store.bench import Bench, done, new_row

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


def test_an_empty_database_says_how_to_make_the_tables(engine: sa.Engine) -> None:
    store = Store(engine, build())
    for ask in (store.check_schema, store.outbox_id, store.counts):
        with pytest.raises(StoreError, match="outbox migrate"):
            ask()


def test_a_migration_makes_what_the_schema_module_says(engine: sa.Engine) -> None:
    migrate(engine)
    tables = build()
    with engine.connect() as connection:
        options = {"include_object": lambda _, name, *__: name != version_table(tables), "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []
        assert current(connection, tables) == head(tables)
    inspector = sa.inspect(engine)
    made = {index["name"] for index in inspector.get_indexes("outbox_row")}
    assert {str(index.name) for index in tables.row.indexes} <= made


def test_a_migration_makes_partial_indexes_as_the_statements_need_them(engine: sa.Engine) -> None:
    """Alembic does not compare the conditions of indexes: make both and look."""
    migrate(engine)
    build("plain_").metadata.create_all(engine)
    query = {
        "postgresql": "SELECT indexname AS name, indexdef AS sql FROM pg_indexes",
        "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index'",
    }[engine.dialect.name]
    with engine.connect() as connection:
        made = {row.name: row.sql for row in connection.exec_driver_sql(query) if row.sql}
    plain = {name: sql for name, sql in made.items() if name.startswith("plain_row")}
    assert len(plain) >= 7
    for name, sql in plain.items():
        assert made[name.replace("plain_", "outbox_")] == sql.replace("plain_", "outbox_")


def test_a_migration_twice_is_a_migration_once(engine: sa.Engine) -> None:
    migrate(engine)
    store = Store(engine, build())
    first = store.outbox_id()
    store.migrate()
    assert store.outbox_id() == first
    assert store.check_schema() == SCHEMA_VERSION


def test_two_migrations_at_once_take_turns(database_url: str) -> None:
    def run(_: int) -> object:
        engine = open_engine(database_url)
        migrate(engine)
        found = Store(engine, build()).outbox_id()
        engine.dispose()
        return found

    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(run, range(3)))) == 1


def test_every_outbox_has_an_id_of_its_own(engine: sa.Engine) -> None:
    ids = set()
    for prefix in ("outbox_", "other_"):
        migrate(engine, prefix)
        ids.add(Store(engine, build(prefix)).outbox_id())
    assert len(ids) == 2


def test_outboxes_of_another_prefix_do_not_touch_each_other(database_url: str) -> None:
    first, second = Bench(database_url), Bench(database_url, "other_")
    first.stage(2)
    second.stage(3)
    assert (len(first.claim()), len(second.claim())) == (2, 3)
    first.close()
    second.close()


def test_an_outbox_in_a_schema_of_its_own(postgres_url: str) -> None:
    bench = Bench(postgres_url, "ob_", "shop")
    bench.stage(3)
    bench.stage(2, "acme")
    rows = bench.claim()
    assert bench.publish(rows) == 5
    bench.settle(*(done(row) for row in rows))
    assert bench.store.counts()["done"] == 5
    assert bench.store.prune(done=timedelta(seconds=-1), failed=timedelta(0)) == 5
    names = sa.inspect(bench.engine).get_table_names(schema="public")
    assert names == []
    bench.close()


def test_a_migration_that_does_not_get_its_lock_gives_up_and_staging_goes_on(postgres_url: str) -> None:
    bench = Bench(postgres_url)
    with bench.engine.connect() as holder, holder.begin():
        holder.exec_driver_sql("LOCK TABLE outbox_alembic_version IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(migrate, bench.engine, lock_timeout=timedelta(milliseconds=400))
            bench.stage(5)
            with pytest.raises(StoreAway, match=r"gave up after 0\.4 s"):
                waiting.result(30)
    assert len(bench.claim()) == 5
    migrate(bench.engine)
    bench.close()


def test_a_migration_of_a_busy_sqlite_file_gives_up(sqlite_url: str) -> None:
    bench = Bench(sqlite_url)
    with bench.engine.connect() as holder, holder.begin():
        insert_rows(holder, bench.tables, [new_row("k")], wake=False, open_namespaces=True)
        with pytest.raises(StoreAway, match=r"gave up after 0\.2 s"):
            migrate(bench.engine, lock_timeout=timedelta(milliseconds=200))
    assert len(bench.claim()) == 1
    bench.close()


def test_the_printed_sql_makes_the_same_tables_on_postgresql(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = open_engine(postgres_url)
    migrate(engine, "ob_", "shop", sql=True)
    script = capsys.readouterr().out
    assert sa.inspect(engine).get_table_names() == []
    raw = engine.raw_connection()
    raw.cursor().execute(script)
    raw.commit()
    raw.close()
    assert Store(engine, build("ob_", "shop")).check_schema() == SCHEMA_VERSION
    bench = Bench(postgres_url, "ob_", "shop")
    bench.stage(2)
    assert len(bench.claim()) == 2
    bench.close()
    engine.dispose()


def test_the_printed_sql_makes_the_same_tables_on_sqlite(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = open_engine(sqlite_url)
    migrate(engine, sql=True)
    connection = sqlite3.connect(engine.url.database or "")
    connection.executescript(capsys.readouterr().out)
    connection.close()
    assert Store(engine, build()).check_schema() == SCHEMA_VERSION
    bench = Bench(sqlite_url)
    bench.stage(2)
    assert len(bench.claim()) == 2
    bench.close()
    engine.dispose()


def test_a_schema_one_version_away_works_and_two_do_not(bench: Bench) -> None:
    meta = bench.tables.meta

    def set_version(version: int) -> None:
        with bench.engine.begin() as connection:
            connection.execute(sa.update(meta).values(schema_version=version))

    for version in (SCHEMA_VERSION - 1, SCHEMA_VERSION, SCHEMA_VERSION + 1):
        set_version(version)
        assert bench.store.check_schema() == version
    set_version(SCHEMA_VERSION + 2)
    with pytest.raises(StoreError, match="upgrade outbox_relay"):
        bench.store.check_schema()
    set_version(SCHEMA_VERSION - 2)
    with pytest.raises(StoreError, match="run 'outbox migrate'"):
        bench.store.check_schema()
    set_version(SCHEMA_VERSION)


def test_tables_of_a_newer_version_are_not_migrated(database_url: str) -> None:
    bench = Bench(database_url)
    with bench.engine.begin() as connection:
        connection.execute(sa.text("UPDATE outbox_alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="upgrade outbox_relay"):
        migrate(bench.engine)
    bench.close()


def test_an_outbox_whose_meta_row_is_gone_says_so(database_url: str) -> None:
    bench = Bench(database_url)
    with bench.engine.begin() as connection:
        connection.execute(sa.delete(bench.tables.meta))
    for ask in (bench.store.check_schema, bench.store.outbox_id):
        with pytest.raises(StoreError, match="outbox migrate"):
            ask()
    bench.close()


def test_a_shops_own_alembic_may_have_a_version_table_beside_it(database_url: str) -> None:
    engine = open_engine(database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(sa.text("INSERT INTO alembic_version VALUES ('shop')"))
    migrate(engine)
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() == "shop"
    engine.dispose()
