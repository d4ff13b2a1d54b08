"""A relay whose database stands behind a pooler that gives each transaction to any of its server sessions (B87)."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.relay.test_service import running
from tests.support.pooler import SERVER_SESSIONS, pooled
from tests.support.processes import ServerMissingError
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.relay.conftest import OpenBench
    from tests.support.processes import Workshop
    from tests.support.servers import Postgres

pytestmark = pytest.mark.owns_server  # the pooler is put before the tests' own server


@pytest.fixture
def pooled_url(postgres: Postgres, postgres_url: str, workshop: Workshop) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir=workshop.folder))
    try:
        with pooled(postgres, postgres_url, folder) as url:
            yield url
    except ServerMissingError as error:
        pytest.skip(str(error))


def test_two_hundred_sweeps_go_through_a_pooler(open_bench: OpenBench, pooled_url: str, embedded_url: str) -> None:
    """A statement that the driver prepares is known to one server session, and the next transaction has another one."""
    bench = open_bench(pooled_url, embedded_url, outbox_wake="off", outbox_batch_size=1)
    bench.stage(200)
    engine = bench.outbox.store.engine
    with ExitStack() as stack:  # at once, so that there are several sessions from now on, which take turns
        for _ in range(SERVER_SESSIONS):
            stack.enter_context(engine.begin()).exec_driver_sql("SELECT 1")
    sweep, sessions = bench.sweep(), set()
    try:
        for _ in range(200):
            sweep.tick()
            with engine.begin() as connection:
                assert connection.info["outbox_pooled"]
                sessions.add(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar())
    finally:
        sweep.drain()
    rows = bench.outbox.store.ls(limit=1000)
    assert len(rows) == 200
    assert all(row.published_at for row in rows)
    assert len(sessions) > 1


def test_a_relay_behind_a_pooler_is_woken_by_the_servers_own_address(
    open_bench: OpenBench, pooled_url: str, postgres_url: str, embedded_url: str
) -> None:
    bench = open_bench(pooled_url, embedded_url, outbox_listen_url=postgres_url, outbox_poll_interval=60)
    with running(bench):
        (first,) = bench.stage()
        eventually(lambda: bench.row(first).published_at, 20)
        (second,) = bench.stage()  # the first may have been there before the relay's first look
        eventually(lambda: bench.row(second).published_at, 20)
