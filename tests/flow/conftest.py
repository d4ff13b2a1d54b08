"""The three stacks that the whole way is tested on."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.flow.stand import QUICK, Launcher, Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    OpenShop = Callable[..., Shop]

STACKS = ("postgresql-rabbitmq", "postgresql-redis", "sqlite-embedded")


@contextmanager
def urls(request: pytest.FixtureRequest, stack: str, folder: Path) -> Iterator[tuple[str, str]]:
    """A database and a broker, new and empty, that outlive the shop on them."""
    if stack == "sqlite-embedded":
        yield f"sqlite:///{folder / 'shop.db'}", f"embedded:///{folder / 'broker'}"
        return
    postgres, server = request.getfixturevalue("postgres"), request.getfixturevalue(stack.partition("-")[2])
    for one in (postgres, server):  # a test before may have left it stopped
        if one.owned:
            one.start()
    name = postgres.create_database()
    broker = server.url(server.create_vhost() if stack.endswith("rabbitmq") else server.fresh_database())
    try:
        yield postgres.url(name), broker
    finally:
        if postgres.owned:
            postgres.start()
        postgres.drop_database(name)


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture
def open_shop(request: pytest.FixtureRequest, tmp_path: Path, launcher: Launcher) -> Iterator[OpenShop]:
    """Open a shop on a stack; leases are short unless ``quick`` is false."""
    with ExitStack() as stack:

        def open_(name: str = "postgresql-rabbitmq", *, quick: bool = True, **conf: Any) -> Shop:
            database, broker = stack.enter_context(urls(request, name, tmp_path))
            return stack.enter_context(
                Shop(launcher, tmp_path, database, broker, **{**(QUICK if quick else {}), **conf})
            )

        yield open_


@pytest.fixture(params=STACKS)
def any_shop(request: pytest.FixtureRequest, open_shop: OpenShop) -> Shop:
    """A shop with short leases, on each stack in turn."""
    return open_shop(request.param)
