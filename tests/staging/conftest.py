from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.staging.shop import Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    """A shop on each database; its broker is away."""
    yield from opened(database_url)


@pytest.fixture
def pg_shop(postgres_url: str) -> Iterator[Shop]:
    yield from opened(postgres_url)


@pytest.fixture
def lite_shop(sqlite_url: str) -> Iterator[Shop]:
    yield from opened(sqlite_url)
