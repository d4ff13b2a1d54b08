"""What can be wrong is told in a sentence that says what to do, with the exit code for it, and no traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import sqlalchemy as sa

from tests.cli.conftest import clean_environment, running

if TYPE_CHECKING:
    from tests.cli.conftest import Shop
    from tests.support.servers import Postgres


def test_no_app_is_misuse(light_shop: Shop) -> None:
    result = light_shop.outbox("status", app=None)
    assert result.code == 2
    assert "celery -A proj outbox status" in result.err


def test_an_unknown_verb_is_misuse(light_shop: Shop) -> None:
    assert light_shop.outbox("explode").code == 2


def test_missing_tables_are_told_with_the_command_that_makes_them(shop: Shop) -> None:
    for verb in ("status", "ls", "relay", "prune"):
        result = shop.outbox(verb)
        assert (result.code, result.out) == (1, "")
        assert "celery -A shop outbox migrate" in result.err


@pytest.mark.parametrize(("version", "says"), [(-1, "outbox migrate"), (99, "upgrade outbox_relay")])
def test_tables_of_another_version_are_refused(shop: Shop, version: int, says: str) -> None:
    shop.ok("migrate")
    engine = sa.create_engine(shop.database)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE outbox_meta SET schema_version = :version"), {"version": version})
    engine.dispose()
    result = shop.outbox("status")
    assert result.code == 1
    assert says in result.err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("shop.db", "outbox_database_url"),
        ("nosuch://localhost/x", "nosuch"),
        ("mysql+pymysql://localhost/x", "mysql"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:////nowhere/at/all/x.db", "unable to open database file"),
        ("postgresql+psycopg://127.0.0.1:9/x", "database"),
    ],
)
def test_a_database_that_cannot_be_used_is_told(light_shop: Shop, url: str, says: str) -> None:
    light_shop.configure(outbox_database_url=url)
    for verb in ("migrate", "status", "check"):
        result = light_shop.outbox(verb)
        assert result.code == 1
        assert says in result.err + result.out


def test_a_database_that_is_down_is_told(big_shop: Shop, postgres: Postgres) -> None:
    big_shop.ok("migrate")
    postgres.stop()
    try:
        result = big_shop.outbox("status")
    finally:
        postgres.start()
    assert result.code == 1
    assert "database" in result.err
    assert len(result.err.splitlines()) == 1


def test_the_password_is_never_printed(light_shop: Shop) -> None:
    light_shop.configure(
        outbox_database_url="postgresql+psycopg://shop:geheim@127.0.0.1:9/x", broker="amqp://shop:geheim@127.0.0.1:9//"
    )
    for verb in ("check", "status", "migrate"):
        result = light_shop.outbox(verb)
        assert result.code == 1
        assert "geheim" not in result.out + result.err
    with running(light_shop, "outbox", "relay", until="it waits, and tries again"):
        pass
    said = (light_shop.folder / "outbox.out").read_text()
    assert "the database is away" in said
    assert "geheim" not in said


def test_settings_that_are_refused_are_named(light_shop: Shop) -> None:
    light_shop.configure(outbox_batch_size=0)
    for verb in ("check", "status", "relay", "migrate"):
        result = light_shop.outbox(verb)
        assert result.code == 1
        assert "outbox_batch_size" in result.out + result.err


def test_a_dormant_outbox_can_be_looked_at_and_not_run(light_shop: Shop) -> None:
    light_shop.configure(outbox_enabled=False)
    light_shop.ok("migrate")
    assert "dormant" in light_shop.ok("check").out
    assert light_shop.outbox("status").code == 0
    result = light_shop.outbox("relay")
    assert result.code == 1
    assert "outbox_enabled = True" in result.err


def test_an_app_without_an_outbox_is_given_one(light_shop: Shop) -> None:
    (light_shop.folder / "plain.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('plain', broker={light_shop.broker!r})\n"
        f"app.conf.update(outbox_enabled=True, outbox_database_url={light_shop.database!r})\n"
    )
    assert light_shop.outbox("migrate", app="plain").code == 0
    assert light_shop.outbox("status", app="plain").code == 0


def test_a_module_that_cannot_be_imported_is_told(light_shop: Shop) -> None:
    light_shop.configure(imports=["nosuchmodule"])
    light_shop.ok("migrate")
    result = light_shop.outbox("check")
    assert result.code == 1
    assert "No module named 'nosuchmodule'" in result.out


def test_a_module_that_cannot_be_imported_is_told_where_it_may_hold_the_outbox(light_shop: Shop) -> None:
    (light_shop.folder / "plain.py").write_text(
        "from celery import Celery\napp = Celery('plain')\napp.conf.imports = ['nosuchmodule']\n"
    )
    result = light_shop.outbox("status", app="plain")
    assert result.code == 1
    assert "No module named 'nosuchmodule'" in result.err


def test_a_broken_app_is_told_by_celery(light_shop: Shop) -> None:
    result = light_shop.outbox("status", app="nosuchmodule")
    assert result.code == 2
    assert "nosuchmodule" in result.err


@pytest.mark.parametrize("verb", ["status", "check", "migrate"])
def test_a_missing_driver_is_told_with_the_command_that_brings_it(light_shop: Shop, verb: str) -> None:
    light_shop.configure(outbox_database_url="postgresql+psycopg://127.0.0.1:9/x")
    without_psycopg = "raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')\n"
    (light_shop.folder / "psycopg.py").write_text(without_psycopg)
    code, said = afresh(light_shop, verb)
    assert code == 1
    assert "pip install 'outbox-relay[postgresql]'" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("verb", ["check", "rearm", "relay"])
def test_a_missing_broker_driver_is_told(light_shop: Shop, verb: str) -> None:
    light_shop.configure(broker="redis://127.0.0.1:9/0")
    (light_shop.folder / "redis.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'redis'\", name='redis')\n"
    )
    light_shop.ok("migrate")
    code, said = afresh(light_shop, verb)
    assert code == 1
    assert "redis" in said
    assert "Traceback" not in said


def afresh(shop: Shop, *arguments: str) -> tuple[int, str]:
    """Run a verb in a process that imports everything itself."""
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "shop", "outbox", *arguments],
        cwd=shop.folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_broker_that_is_down_is_told(light_shop: Shop) -> None:
    light_shop.configure(broker="amqp://127.0.0.1:9//")
    light_shop.ok("migrate")
    for verb in ("check", "rearm"):
        result = light_shop.outbox(verb)
        assert result.code == 1
        assert "reached" in result.out + result.err


def test_a_broker_that_refuses_the_login_is_told(big_shop: Shop) -> None:
    big_shop.configure(broker=re.sub("//.*@", "//nobody:nothing@", big_shop.broker))
    big_shop.ok("migrate")
    for verb in ("check", "rearm"):
        result = big_shop.outbox(verb)
        assert result.code == 1
        assert "ACCESS_REFUSED" in result.out + result.err
        assert "Traceback" not in result.err


def test_rows_are_cancelled_where_the_broker_refuses_the_login(big_shop: Shop) -> None:
    big_shop.ok("migrate")
    (staged,) = big_shop.stage("charge")
    big_shop.sql(
        "INSERT INTO outbox_worker (instance, hostname, pool, namespaces, queues, held, started_at, last_seen_at) "
        "VALUES (:instance, 'w1@vm', 'prefork', 'all', '[\"celery\"]', 0, now(), now())",
        instance=uuid4(),
    )
    big_shop.sql(
        "UPDATE outbox_row SET status = 'claimed', claim_token = :token, claimed_at = created_at, "
        "claimed_by = :token, lease_until = created_at + interval '1 hour', published_at = created_at, "
        "published_to = 'celery'",
        token=uuid4(),
    )
    big_shop.configure(broker=re.sub("//.*@", "//nobody:nothing@", big_shop.broker))
    result = big_shop.outbox("cancel", str(staged.row_id), "--yes")
    assert result.code == 0
    assert "workers could not be told" in result.err


@pytest.mark.parametrize("verb", ["check", "rearm", "relay"])
def test_a_driver_that_no_extra_brings_is_told(light_shop: Shop, verb: str) -> None:
    light_shop.configure(broker="sqs://x")
    (light_shop.folder / "boto3.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'boto3'\", name='boto3')\n"
    )
    (light_shop.folder / "botocore.py").write_text("raise ModuleNotFoundError(\"No module named 'botocore'\")\n")
    light_shop.ok("migrate")
    code, said = afresh(light_shop, verb)
    assert code == 1
    assert "No module named" in said
    assert "Traceback" not in said


def test_a_migration_that_gets_no_lock_gives_up_and_says_so(big_shop: Shop) -> None:
    engine = sa.create_engine(big_shop.database)
    big_shop.ok("migrate")
    with engine.connect() as connection:
        connection.execute(sa.text("LOCK TABLE outbox_alembic_version IN ACCESS EXCLUSIVE MODE"))
        result = big_shop.outbox("migrate")
    engine.dispose()
    assert result.code == 1
    assert "holds a lock" in result.err
    assert "Nothing was changed" in result.err
