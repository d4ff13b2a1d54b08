"""An app, its queues and a publisher over one broker, and a way to see what has arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.publish.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import RabbitMQ


@pytest.fixture
def bench(broker_url: str) -> Iterator[Bench]:
    """The bench over every broker."""
    bench = Bench(broker_url)
    yield bench
    bench.close()


@pytest.fixture
def rabbit(rabbitmq_url: str) -> Iterator[Bench]:
    bench = Bench(rabbitmq_url)
    yield bench
    bench.close()


@pytest.fixture
def slow_lane(rabbitmq: RabbitMQ, rabbitmq_url: str) -> Iterator[Bench]:
    """The bench over RabbitMQ, by way of a proxy."""
    bench = Bench(rabbitmq_url, proxied=rabbitmq.port)
    yield bench
    bench.close()
