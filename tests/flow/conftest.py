"""The three stacks that the whole way is tested on."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.flow.stand import QUICK, Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    OpenShop = Callable[..., Shop]

STACKS = {
    "postgresql-rabbitmq": ("postgres_url", "rabbitmq_url"),
    "postgresql-redis": ("postgres_url", "redis_url"),
    "sqlite-embedded": ("sqlite_url", "embedded_url"),
}


@pytest.fixture
def open_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenShop]:
    """Open a shop on a stack; leases are short unless ``quick`` is false."""
    with ExitStack() as stack:

        def open_(name: str = "postgresql-rabbitmq", *, quick: bool = True, **conf: Any) -> Shop:
            database, broker = (str(request.getfixturevalue(url)) for url in STACKS[name])
            return stack.enter_context(Shop(tmp_path, database, broker, **{**(QUICK if quick else {}), **conf}))

        yield open_


@pytest.fixture(params=list(STACKS))
def any_shop(request: pytest.FixtureRequest, open_shop: OpenShop) -> Shop:
    """A shop with short leases, on each stack in turn."""
    return open_shop(request.param)
