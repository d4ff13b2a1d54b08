"""A migrated outbox in an empty database of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.store.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Postgres


@pytest.fixture(scope="session")
def shared_database(postgres: Postgres) -> str:
    """A database for all tests that leave it usable: to make one takes longer than most tests."""
    return postgres.create_database()


@pytest.fixture
def postgres_bench(postgres: Postgres, shared_database: str) -> Iterator[Bench]:
    """A migrated, empty outbox on PostgreSQL."""
    if postgres.owned:
        postgres.start()
    bench = Bench(postgres.url(shared_database))
    bench.empty()
    yield bench
    bench.close()


@pytest.fixture
def sqlite_bench(sqlite_url: str) -> Iterator[Bench]:
    """A migrated, empty outbox on SQLite."""
    bench = Bench(sqlite_url)
    yield bench
    bench.close()


@pytest.fixture(params=["postgres_bench", "sqlite_bench"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """A migrated, empty outbox on each kind of database."""
    bench: Bench = request.getfixturevalue(request.param)
    return bench
