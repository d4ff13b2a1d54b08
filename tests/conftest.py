"""Servers and addresses for every test. See tests/support/servers.py for what the servers can do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import celery.app.builtins  # noqa: F401 - Celery's own tasks have to be there before they are noted
import hypothesis
import pytest
from celery import _state

from tests.support.processes import ServerMissingError, Workshop
from tests.support.servers import Postgres, RabbitMQ, Redis, Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A busy machine is not a fault; what failed is printed so that it can be run again.
hypothesis.settings.register_profile(
    "outbox", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("outbox")

S = TypeVar("S", bound=Server)
CELERYS_OWN = frozenset(_state._on_app_finalizers)
LENT = tuple(kind.variable for kind in (Postgres, RabbitMQ, Redis))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A server that an environment variable lends is not the tests' to stop."""
    if any(os.environ.get(variable) for variable in LENT):
        stopping = [item for item in items if item.get_closest_marker("owns_server")]
        config.hook.pytest_deselected(items=stopping)
        items[:] = [item for item in items if item not in stopping]


@pytest.fixture(autouse=True)
def no_shared_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tasks in the app that they are made for.

    Celery gives a task of one app to every app that is made later in the process, whatever test made it; for that there
    is no public switch.
    """
    monkeypatch.setattr(_state, "_on_app_finalizers", set(CELERYS_OWN))


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    workshop = Workshop()
    yield workshop
    workshop.close()


def _serve(kind: type[S], workshop: Workshop) -> Iterator[S]:
    try:
        server = kind(workshop)
    except ServerMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres(workshop: Workshop) -> Iterator[Postgres]:
    yield from _serve(Postgres, workshop)


@pytest.fixture(scope="session")
def rabbitmq(workshop: Workshop) -> Iterator[RabbitMQ]:
    yield from _serve(RabbitMQ, workshop)


@pytest.fixture(scope="session")
def redis(workshop: Workshop) -> Iterator[Redis]:
    yield from _serve(Redis, workshop)


def _up(server: Server) -> None:
    """A test before this one may have left it stopped."""
    if server.owned:
        server.start()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """The SQLAlchemy URL of a database that is new and empty."""
    _up(postgres)
    name = postgres.create_database()
    yield postgres.url(name)
    _up(postgres)
    postgres.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'outbox.db'}"


@pytest.fixture
def rabbitmq_url(rabbitmq: RabbitMQ) -> str:
    """The URL of a vhost that is new and empty."""
    _up(rabbitmq)
    return rabbitmq.url(rabbitmq.create_vhost())


@pytest.fixture
def redis_url(redis: Redis) -> str:
    """The URL of a database that is empty."""
    _up(redis)
    return redis.url(redis.fresh_database())


@pytest.fixture
def embedded_url(tmp_path: Path) -> str:
    return f"embedded:///{tmp_path / 'broker'}"


@pytest.fixture(params=["postgresql", "sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    return str(request.getfixturevalue({"postgresql": "postgres_url", "sqlite": "sqlite_url"}[request.param]))


@pytest.fixture(params=["rabbitmq", "redis", "embedded"])
def broker_url(request: pytest.FixtureRequest) -> str:
    """An empty broker of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))
