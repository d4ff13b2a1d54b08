"""Each shop under examples/ runs as it stands, with a relay and a worker of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.examples.stall import Stall
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUIET = ("--loglevel", "INFO", "--pool", "solo", "--without-gossip", "--without-mingle")


@pytest.fixture
def database(postgres_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(postgres_url)
    yield engine
    engine.dispose()


def run_beside(stall: Stall, app: str, *program: str) -> None:
    """Start the shop's relay and worker. ``program``: how its command line is called, by default ``celery -A app``."""
    relay = program or ("-m", "celery", "-A", app, "outbox")
    stall.start("relay", *relay, "relay", until="started on")
    stall.start("worker", "-m", "celery", "-A", app, "worker", *QUIET, until=" ready.")


def settled(engine: sa.Engine, orders: str, *, rows: int) -> Any:
    """Whether all orders are charged and all rows done, by their number."""
    with engine.connect() as connection:
        charged = connection.execute(sa.text(f"SELECT count(*) FROM {orders} WHERE charged")).scalar()
        done = connection.execute(sa.text("SELECT count(*) FROM outbox_row WHERE status = 'done'")).scalar()
        every = connection.execute(sa.text("SELECT count(*) FROM outbox_row")).scalar()
    assert (charged, done, every) == (rows, rows, rows)
    return True


def test_plain_scripts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'plain' / 'shop.db'}"
    broker = f"embedded:///{tmp_path / 'broker'}"
    with Stall("plain", tmp_path, SHOP_DATABASE_URL=url, SHOP_BROKER_URL=broker) as stall:
        stall.run("-m", "celery", "-A", "shop", "outbox", "migrate")
        run_beside(stall, "shop")
        assert "order 1 (tea): task " in stall.run("order.py", "tea", "coffee")
        engine = sa.create_engine(url)
        eventually(lambda: settled(engine, "orders", rows=2), 30)
        engine.dispose()


FLASK_ORDER = """
import json, sys
from shop import web
print(json.dumps(web.test_client().post(f"/orders/{sys.argv[1]}").json))
"""


def test_flask(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'flask_shop' / 'shop.db'}"
    broker = f"embedded:///{tmp_path / 'broker'}"
    with Stall("flask_shop", tmp_path, SHOP_DATABASE_URL=url, SHOP_BROKER_URL=broker) as stall:
        stall.run("-m", "celery", "-A", "shop:app", "outbox", "migrate")
        run_beside(stall, "shop:app")
        made = json.loads(stall.run("-c", FLASK_ORDER, "tea"))
        engine = sa.create_engine(url)
        eventually(lambda: settled(engine, "orders", rows=1), 30)
        engine.dispose()
        assert json.loads(stall.run("-m", "celery", "-A", "shop:app", "outbox", "show", made["task"], "--json"))


FASTAPI_ORDER = """
import json, sys
from fastapi.testclient import TestClient
from shop import api
with TestClient(api) as client:
    print(json.dumps(client.post(f"/orders/{sys.argv[1]}").json()))
"""


def test_fastapi(tmp_path: Path, database: sa.Engine, rabbitmq_url: str) -> None:
    url = database.url.render_as_string(hide_password=False)
    with Stall("fastapi_shop", tmp_path, SHOP_DATABASE_URL=url, SHOP_BROKER_URL=rabbitmq_url) as stall:
        stall.run("-m", "celery", "-A", "shop:app", "outbox", "migrate")
        run_beside(stall, "shop:app")
        made = json.loads(stall.run("-c", FASTAPI_ORDER, "tea"))
        eventually(lambda: settled(database, "orders", rows=1), 30)
        with database.connect() as connection:
            assert connection.execute(sa.text("SELECT task_id FROM outbox_row")).scalar() == made["task"]


ORDER = """
import json, os, sys
import django
django.setup()
from django.test import Client
print(json.dumps(Client().get(f"/orders/{sys.argv[1]}").json()))
"""


def test_django(tmp_path: Path, database: sa.Engine, rabbitmq_url: str) -> None:
    url = database.url
    env = {
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "SHOP_DB_ENGINE": "django.db.backends.postgresql",
        "SHOP_DB_NAME": str(url.database),
        "SHOP_DB_HOST": str(url.host or ""),
        "SHOP_DB_PORT": str(url.port or ""),
        "SHOP_DB_USER": str(url.username or ""),
        "SHOP_DB_PASSWORD": str(url.password or ""),
        "SHOP_BROKER_URL": rabbitmq_url,
    }
    with Stall("django_shop", tmp_path, **env) as stall:
        stall.run("manage.py", "migrate")
        assert "No changes" in stall.run("manage.py", "makemigrations", "--check", "--dry-run")
        assert "no issues" in stall.run("manage.py", "check")
        assert "of version" in stall.run("manage.py", "outbox", "migrate")
        run_beside(stall, "shop", "manage.py", "outbox")
        made = json.loads(stall.run("-c", ORDER, "tea"))
        eventually(lambda: settled(database, "shop_order", rows=1), 30)
        with database.connect() as connection:
            assert connection.execute(sa.text("SELECT task_id FROM outbox_row")).scalar() == made["task"]
        assert json.loads(stall.run("manage.py", "outbox", "show", made["task"], "--json"))["status"] == "done"


@pytest.mark.parametrize("migrations", ["--migrations", "--no-migrations"])
def test_djangos_own_tests_use_the_testing_aids(tmp_path: Path, migrations: str) -> None:
    with Stall("django_shop", tmp_path) as stall:
        options = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--ds=shop.settings", migrations)
        assert "3 passed" in stall.run("-m", "pytest", *options)
