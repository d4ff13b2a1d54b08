"""The built-in app: it works without a setting, and takes them from celeryconfig.py and from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from celery import signature

from outbox_relay.environment import configuration
from tests.cli.conftest import running
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

BUILT_IN = "outbox_relay"
TASKS = """\
from celery import shared_task

@shared_task(name="shop.write")
def write(text):
    open("written", "a").write(text)
"""


def test_it_works_without_any_setting_in_a_folder_of_its_own(light_shop: Shop) -> None:
    assert light_shop.outbox("migrate", app=BUILT_IN).code == 0
    data = light_shop.folder / ".outbox"
    assert (data / "outbox.db").exists()
    assert (data / ".gitignore").read_text() == "*\n"
    checked = light_shop.outbox("check", "--json", app=BUILT_IN)
    assert checked.json["ok"] is True
    assert light_shop.outbox("status", "--json", app=BUILT_IN).json["name"] == "outbox_relay"


def test_help_and_versions_leave_nothing_behind(light_shop: Shop) -> None:
    assert light_shop.run("outbox", "--help", app=BUILT_IN).code == 0
    assert not (light_shop.folder / ".outbox").exists()


def test_celeryconfig_is_read_and_the_environment_has_the_last_word(light_shop: Shop) -> None:
    (light_shop.folder / "celeryconfig.py").write_text(
        f"outbox_name = 'fromfile'\noutbox_database_url = {light_shop.database!r}\noutbox_table_prefix = 'mine_'\n"
    )
    assert light_shop.outbox("migrate", app=BUILT_IN).code == 0
    assert not (light_shop.folder / ".outbox" / "outbox.db").exists()
    assert sa.inspect(sa.create_engine(light_shop.database)).has_table("mine_row")
    assert light_shop.outbox("status", "--json", app=BUILT_IN).json["name"] == "fromfile"
    named = light_shop.outbox("status", "--json", app=BUILT_IN, env={"OUTBOX_NAME": "fromenv"})
    assert named.json["name"] == "fromenv"


def test_another_configuration_module_can_be_named(light_shop: Shop) -> None:
    (light_shop.folder / "other.py").write_text("outbox_name = 'other'\n")
    assert light_shop.outbox("migrate", app=BUILT_IN).code == 0
    result = light_shop.outbox("status", "--json", app=BUILT_IN, env={"CELERY_CONFIG_MODULE": "other"})
    assert result.json["name"] == "other"


@pytest.mark.parametrize("verb", [("outbox", "status"), ("worker",), ("beat",)])
def test_a_wrong_variable_is_named_without_a_traceback(light_shop: Shop, verb: tuple[str, ...]) -> None:
    result = light_shop.run(*verb, app=BUILT_IN, env={"OUTBOX_POLL_INTERVAL": "soon"})
    assert result.code == 1
    assert "OUTBOX_POLL_INTERVAL" in result.err
    assert "Traceback" not in result.err


def test_worker_relay_and_beat_run_a_task_from_its_row_to_done(light_shop: Shop) -> None:
    (light_shop.folder / "tasks.py").write_text(TASKS)
    (light_shop.folder / "celeryconfig.py").write_text(
        f"imports = ['tasks']\nbroker_url = {light_shop.broker!r}\noutbox_database_url = {light_shop.database!r}\n"
    )
    assert light_shop.outbox("migrate", app=BUILT_IN).code == 0
    light_shop.stage(signature("shop.write", ("x",)))
    with (
        running(light_shop, "worker", "--pool", "solo", "--loglevel", "INFO", until="ready.", app=BUILT_IN),
        running(light_shop, "outbox", "relay", until="started on", app=BUILT_IN),
    ):
        counts = eventually(
            lambda: (c := light_shop.outbox("status", "--json", app=BUILT_IN).json["rows"])["done"] and c, within=30
        )
    assert counts["done"] == 1
    assert (light_shop.folder / "written").read_text() == "x"


def test_imports_come_from_the_environment() -> None:
    assert configuration({"OUTBOX_IMPORTS": "a,b.c"}) == {"imports": ["a", "b.c"]}
