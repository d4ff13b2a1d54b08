"""The private servers themselves: they keep what a real outage keeps, and they leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import kombu
import pytest
import redis as redis_client

from tests.support.processes import NotOurServerError, Workshop
from tests.support.servers import Postgres

if TYPE_CHECKING:
    from tests.support.servers import RabbitMQ, Redis

from tests.support.waiting import eventually


@pytest.mark.owns_server
def test_postgresql_keeps_commits_over_a_kill(postgres: Postgres, postgres_url: str) -> None:
    database = postgres_url.rsplit("/", 1)[1]
    postgres.execute("CREATE TABLE kept AS SELECT 1 AS one", database=database)
    postgres.kill()
    postgres.start()
    assert postgres.execute("SELECT one FROM kept", database=database) == [(1,)]


@pytest.mark.owns_server
def test_rabbitmq_keeps_persistent_messages_over_a_restart(rabbitmq: RabbitMQ, rabbitmq_url: str) -> None:
    queue = kombu.Queue("kept", kombu.Exchange("kept"), routing_key="kept")
    with kombu.Connection(rabbitmq_url, transport_options={"confirm_publish": True}) as connection:
        connection.Producer().publish("a", exchange="kept", routing_key="kept", declare=[queue])
    rabbitmq.restart()
    with kombu.Connection(rabbitmq_url) as connection:
        message = queue.bind(connection.default_channel).get()
        assert message is not None
        assert message.payload == "a"


@pytest.mark.owns_server
def test_redis_keeps_its_data_over_a_restart(redis: Redis, redis_url: str) -> None:
    with redis_client.Redis.from_url(redis_url) as client:
        client.set("kept", "a")
    redis.restart()
    with redis_client.Redis.from_url(redis_url) as client:
        assert client.get("kept") == b"a"


def test_each_test_has_an_empty_vhost(rabbitmq: RabbitMQ) -> None:
    names = {rabbitmq.create_vhost() for _ in range(3)}
    assert len(names) == 3
    for name in names:
        with kombu.Connection(rabbitmq.url(name)) as connection:
            connection.connect()


def test_a_lent_server_is_not_stopped(monkeypatch: pytest.MonkeyPatch, workshop: Workshop) -> None:
    monkeypatch.setenv("OUTBOX_TEST_POSTGRES_URL", "postgresql+psycopg://somebody@db.example/main")
    lent = Postgres(workshop)
    assert lent.url("other") == "postgresql+psycopg://somebody@db.example/other"
    with pytest.raises(NotOurServerError, match="OUTBOX_TEST_POSTGRES_URL"):
        lent.stop()


def test_servers_end_with_a_session_that_is_killed() -> None:
    """Whatever ends the tests, no server outlives them and no folder stays."""
    program = (
        "import os, signal\n"
        "from tests.support.processes import Workshop\n"
        "from tests.support.servers import Redis\n"
        "workshop = Workshop()\n"
        "server = Redis(workshop)\n"
        "print(server._process.pid, workshop.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    pid, folder = run.stdout.split()
    eventually(lambda: not os.path.exists(folder) and not os.path.exists(f"/proc/{pid}"), within=20)
