"""The marker table in a database that is not the outbox's: made, found there already, and pruned."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.store.engine import Database, open_engine
from outbox_relay.store.migrate import current, migrate, version_table
from outbox_relay.store.once import mark_once, prune_markers
from outbox_relay.store.schema import build
from tests.store.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TABLES = build()


@pytest.fixture
def place(database_url: str) -> Iterator[Database]:
    """A shop's own database."""
    engine = open_engine(database_url)
    yield Database(engine, TABLES)
    engine.dispose()


def mark(place: Database, row_id: int, task_id: str, *, days: int) -> None:
    with place.begin() as connection:
        assert mark_once(connection, TABLES, row_id=row_id, task_id=task_id)
        then = sa.sql.text(
            "UPDATE outbox_once SET created_at = created_at - make_interval(days => :days) WHERE row_id = :id"
            if place.dialect == "postgresql"
            else "UPDATE outbox_once SET created_at = datetime(created_at, '-' || :days || ' days') WHERE row_id = :id"
        )
        connection.execute(then, {"days": days, "id": row_id})


def markers(place: Database) -> set[int]:
    with place.begin(reads=True) as connection:
        return set(connection.execute(sa.select(TABLES.once.c.row_id)).scalars())


def test_it_is_one_table_with_a_version_of_its_own_and_made_once(place: Database) -> None:
    for _ in range(2):
        migrate(place.engine, once_only=True)
    names = set(sa.inspect(place.engine).get_table_names())
    assert names == {"outbox_once", version_table(TABLES, once_only=True)}
    with place.engine.connect() as connection:
        assert current(connection, TABLES, once_only=True) == "once_0001"
        assert current(connection, TABLES) is None
        once = sa.inspect(connection).get_columns("outbox_once")
    assert [column["name"] for column in once] == [column.name for column in TABLES.once.columns]


def test_names_and_schema_are_those_of_the_settings(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine, "shop_", "tasks", once_only=True)
    assert set(sa.inspect(engine).get_table_names("tasks")) == {"shop_once", "shop_once_alembic_version"}
    engine.dispose()


@pytest.mark.parametrize("first", [False, True])
def test_the_outboxs_own_tables_may_be_there_too(place: Database, first: bool) -> None:
    migrate(place.engine, once_only=first)
    mark_before = None
    if first:
        mark(place, 1, "t", days=0)
        mark_before = {1}
    migrate(place.engine, once_only=not first)
    assert markers(place) == (mark_before or set())


def test_its_sql_can_be_printed(place: Database, capsys: pytest.CaptureFixture[str]) -> None:
    migrate(place.engine, once_only=True, sql=True)
    assert "CREATE TABLE IF NOT EXISTS outbox_once" in capsys.readouterr().out
    assert sa.inspect(place.engine).get_table_names() == []


def test_markers_go_when_they_are_old_and_their_rows_are_gone(place: Database, tmp_path: Path) -> None:
    migrate(place.engine, once_only=True)
    bench = Bench(f"sqlite:///{tmp_path / 'outbox.db'}")
    (kept,) = (staged.row_id for staged in bench.stage())
    mark(place, kept, "there", days=60)
    for row_id in range(100, 107):
        mark(place, row_id, "gone", days=60)
    mark(place, 200, "gone lately", days=2)
    pages = list(prune_markers(place, Database(bench.engine, TABLES), age=timedelta(days=30), limit=3))
    assert sum(pages) == 7
    assert markers(place) == {kept, 200}
    bench.close()
