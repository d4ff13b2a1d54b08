"""Which databases are worth waiting for, and which need somebody to correct something."""

from __future__ import annotations

import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from outbox_relay.errors import StoreAway
from outbox_relay.store.engine import SQLITE_BUSY_MS, Database, open_engine
from outbox_relay.store.reach import may_come_back
from outbox_relay.store.schema import build
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import Postgres


def worth_waiting_for(url: str) -> bool:
    engine = open_engine(url)
    try:
        with pytest.raises(StoreAway) as caught, Database(engine, build()).begin():
            pass
        return may_come_back(engine, caught.value)
    finally:
        engine.dispose()


def test_a_server_that_is_not_there_is_worth_waiting_for() -> None:
    assert worth_waiting_for("postgresql+psycopg://shop:secret@127.0.0.1:9/shop")
    assert worth_waiting_for("postgresql+psycopg://nosuch.invalid/shop")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert worth_waiting_for(f"postgresql+psycopg://127.0.0.1:{port}/shop?connect_timeout=2")


def test_a_server_that_knows_no_such_database_or_user_is_not(postgres: Postgres, postgres_url: str) -> None:
    url = sa.make_url(postgres_url)
    assert not worth_waiting_for(url.set(database="nosuch").render_as_string())
    assert not worth_waiting_for(url.set(username="nobody").render_as_string())
    assert not worth_waiting_for(url.update_query_dict({"sslmode": "require"}).render_as_string())


@pytest.mark.owns_server
def test_a_server_that_refuses_the_password_is_not(postgres: Postgres, postgres_url: str) -> None:
    postgres.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    try:
        with postgres.guarding("guarded"):
            url = sa.make_url(postgres_url).set(username="guarded")
            assert not worth_waiting_for(url.render_as_string())
            assert not worth_waiting_for(url.set(password="wrong").render_as_string(hide_password=False))
    finally:
        postgres.execute("DROP ROLE guarded")


def test_a_server_with_no_connection_to_spare_is_worth_waiting_for(postgres: Postgres, postgres_url: str) -> None:
    url = sa.make_url(postgres_url).set(username="crowd")
    postgres.execute("CREATE ROLE crowd LOGIN CONNECTION LIMIT 0")
    try:
        assert worth_waiting_for(url.render_as_string())
    finally:
        postgres.execute("DROP ROLE crowd")


@pytest.mark.owns_server
def test_a_server_that_shuts_down_is_worth_waiting_for(postgres: Postgres, postgres_url: str) -> None:
    """It answers, and says so: as it does while it starts."""
    with closing(psycopg.connect(postgres.conninfo())):
        postgres._process.send(signal.SIGTERM)  # waits for the sessions to end
        eventually(lambda: "received smart shutdown request" in postgres.log_text())
        assert worth_waiting_for(postgres_url)
    postgres.stop()
    postgres.start()


def test_a_sqlite_file_that_is_locked_is_worth_waiting_for_and_a_missing_folder_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_relay.store.engine.SQLITE_BUSY_MS", 50)
    assert SQLITE_BUSY_MS > 50
    file = tmp_path / "shop.db"
    blocker = open_engine(f"sqlite:///{file}")
    with blocker.begin():
        assert worth_waiting_for(f"sqlite:///{file}")
    blocker.dispose()
    assert not worth_waiting_for("sqlite:////nowhere/at/all/shop.db")
