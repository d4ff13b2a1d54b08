"""The demo: it ends by itself, everything that it says comes from its database, and nothing of it is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from outbox_relay import Outbox
from outbox_relay.cli import demo_report
from outbox_relay.cli.demo_tasks import engine_of, rolled_back, runs
from tests.cli.conftest import clean_environment
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = [sys.executable, "-m", "celery", "-A", "outbox_relay", "outbox", "demo"]


@dataclass
class Run:
    """A demo that has ended, with its folder kept."""

    code: int
    out: str
    took: float
    folder: Path


def in_folder(folder: Path) -> list[int]:
    """The processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("demo")
    began = time.monotonic()
    done = subprocess.run(
        [*COMMAND, "--keep"],
        cwd=place,
        env={**clean_environment(), "TMPDIR": str(place)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    (folder,) = place.glob("outbox-demo-*")
    return Run(done.returncode, done.stdout, time.monotonic() - began, folder)


@pytest.fixture
def demo_outbox(ended: Run) -> Iterator[Outbox]:
    app = Celery("outbox_relay", set_as_current=False)
    app.conf.update(outbox_enabled=True, outbox_database_url=f"sqlite:///{ended.folder / 'shop.db'}")
    outbox = Outbox(app)
    app.set_current()
    yield outbox
    outbox.close()
    engine_of.cache_clear()


def test_the_demo_ends_by_itself_with_every_task_accounted_for(ended: Run) -> None:
    assert ended.code == 0, ended.out
    assert ended.took < 45
    assert "1000 of 1000 tasks have their outcome" in ended.out
    assert re.search(r"^all +1000 +1000 +960 +40 ", ended.out, re.MULTILINE)
    assert "NOT" not in ended.out


def test_no_process_outlives_the_demo(ended: Run) -> None:
    assert in_folder(ended.folder) == []


def test_a_missing_row_makes_the_demo_fail(demo_outbox: Outbox) -> None:
    assert demo_report.read_report(demo_outbox).complete
    row = demo_outbox.tables.row
    with engine_of(demo_outbox.settings.database_url).connect() as connection:
        connection.execute(row.delete().where(row.c.id == 500))
        assert not demo_report.read(connection, row).complete
        connection.rollback()
        connection.execute(row.update().where(row.c.id == 500).values(status="claimed"))
        assert not demo_report.read(connection, row).complete
        connection.rollback()


def test_a_rolled_back_task_that_ran_makes_the_demo_fail(demo_outbox: Outbox) -> None:
    with engine_of(demo_outbox.settings.database_url).connect() as connection:
        gone = connection.execute(rolled_back.select()).scalars().first()
        connection.execute(runs.insert().values(task_id=gone, retries=0))
        assert not demo_report.read(connection, demo_outbox.tables.row).complete
        connection.rollback()


def test_ctrl_c_ends_the_demo_and_all_that_it_started(tmp_path: Path) -> None:
    process = subprocess.Popen(
        COMMAND, cwd=tmp_path, env={**clean_environment(), "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        (folder,) = eventually(lambda: list(tmp_path.glob("outbox-demo-*")), within=30)
        eventually(lambda: len(in_folder(folder)) >= 4, within=30)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert in_folder(folder) == []
        assert not folder.exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
