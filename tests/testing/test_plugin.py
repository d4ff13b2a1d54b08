"""The fixtures, in the tests of a shop that uses Celery's own plugin too."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CONFTEST = """
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox_relay import Outbox

pytest_plugins = ["celery.contrib.pytest", "outbox_relay.testing"]


@pytest.fixture(scope="session")
def celery_config():
    return {
        "broker_url": "amqp://127.0.0.1:1//", "result_backend": "cache+memory://",
        "outbox_enabled": True, "outbox_name": "shop", "outbox_database_url": "sqlite:///DATABASE",
    }


@pytest.fixture
def outbox_connection(celery_app):
    engine = sa.create_engine("sqlite:///DATABASE")
    Outbox.configure_sqlite(engine)
    celery_app.outbox = None
    outbox = Outbox(celery_app)
    outbox.tables.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()
"""

TESTS = """
def test_the_shop(celery_app, outbox_connection, outbox):
    @celery_app.task
    def charge(order, amount):
        return order + amount

    with celery_app.outbox.capture(outbox_connection):
        result = charge.delay(1, amount=2)
    outbox.assert_staged(charge, args=[1], kwargs={"amount": 2})
    (ran,) = outbox.drain()
    assert (ran.task_id, ran.result) == (result.id, 3)
    assert result.get(timeout=5) == 3
"""


def test_the_fixtures_serve_a_shop_that_uses_celerys_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.replace("DATABASE", str(tmp_path / "shop.db")))
    (tmp_path / "test_shop.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
