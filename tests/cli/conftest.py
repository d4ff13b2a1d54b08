"""A shop on disk, and its command line run as people run it: as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from celery import Celery

from outbox_relay import Outbox, Staged
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

APP = """\
from celery import Celery
from outbox_relay import Outbox

app = Celery("shop", broker={broker!r})
app.conf.update(outbox_enabled=True, outbox_database_url={database!r}, task_acks_late=True)
app.conf.update({conf!r})
outbox = Outbox(app)


@app.task(name="shop.charge")
def charge(number):
    return number
"""


@dataclass
class Result:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Launcher:
    """A process that starts commands; see tests/cli/launcher.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launcher.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )

    def run(self, request: Mapping[str, Any]) -> int:
        """Run a command and return its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@dataclass
class Shop:
    """A folder with a ``shop.py`` in it."""

    folder: Path
    database: str
    broker: str
    launcher: Launcher

    def configure(self, **conf: Any) -> None:
        text = APP.format(broker=conf.pop("broker", self.broker), database=self.database, conf=conf)
        (self.folder / "shop.py").write_text(text)

    def run(self, *arguments: str, app: str | None = "shop", env: Mapping[str, str] | None = None) -> Result:
        """Run ``celery -A shop …``; nothing can be typed into it."""
        named = () if app is None else ("-A", app)
        out, err = self.folder / "stdout", self.folder / "stderr"
        request = {
            "arguments": [*named, *arguments],
            "cwd": str(self.folder),
            "env": {**clean_environment(), **(env or {})},
            "in": os.devnull,
            "out": str(out),
            "err": str(err),
        }
        result = Result(self.launcher.run(request), out.read_text(), err.read_text())
        assert "Traceback (most recent call last):\n  File" not in result.err, result.err
        return result

    def outbox(self, *arguments: str, **options: Any) -> Result:
        return self.run("outbox", *arguments, **options)

    def stage(self, *signatures: Any, **options: Any) -> list[Staged]:
        """Stage tasks as the shop would, in one transaction."""
        with self.outbox_here() as (outbox, engine), engine.begin() as connection:
            return [
                outbox.stage(connection, outbox.app.signature(one) if isinstance(one, str) else one, **options)
                for one in signatures
            ]

    def sql(self, statement: str, **parameters: Any) -> None:
        """Put rows into a state that would take a relay and a worker to reach."""
        engine = sa.create_engine(self.database)
        with engine.begin() as connection:
            connection.execute(sa.text(statement), parameters)
        engine.dispose()

    @contextmanager
    def outbox_here(self) -> Iterator[tuple[Outbox, sa.Engine]]:
        """The shop's outbox in this process, and its engine."""
        app = Celery("shop", broker=self.broker, set_as_current=False)
        app.conf.update(outbox_enabled=True, outbox_database_url=self.database)
        outbox = Outbox(app)
        engine = sa.create_engine(self.database)
        if engine.dialect.name == "sqlite":
            outbox.configure_sqlite(engine)
        yield outbox, engine
        engine.dispose()
        outbox.close()

    def ok(self, *arguments: str) -> Result:
        """Run a verb that has to succeed."""
        result = self.outbox(*arguments)
        assert result.code == 0, result
        return result


@contextmanager
def running(shop: Shop, *arguments: str, until: str, app: str = "shop") -> Iterator[subprocess.Popen[bytes]]:
    """A celery process in the shop's folder, once it has said ``until``."""
    log = shop.folder / f"{arguments[0]}.out"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", app, *arguments],
            cwd=shop.folder,
            env=clean_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        eventually(lambda: until in log.read_text(), within=30, what=f"{until!r} in the log")
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        finally:
            process.kill()
            process.wait()


def clean_environment() -> dict[str, str]:
    """What a person's shell has, without what this test session was given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "CELERY_"))}
    return {**kept, "PYTHONPATH": os.getcwd(), "PYTHONWARNINGS": "default"}


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture
def shop(tmp_path: Path, database_url: str, embedded_url: str, launcher: Launcher) -> Shop:
    """A shop whose tables are not made yet, on each database."""
    made = Shop(tmp_path, database_url, embedded_url, launcher)
    made.configure()
    return made


@pytest.fixture
def light_shop(tmp_path: Path, sqlite_url: str, embedded_url: str, launcher: Launcher) -> Shop:
    """A shop on SQLite alone, for rules that no database changes."""
    made = Shop(tmp_path, sqlite_url, embedded_url, launcher)
    made.configure()
    return made


@pytest.fixture
def big_shop(tmp_path: Path, postgres_url: str, rabbitmq_url: str, launcher: Launcher) -> Shop:
    """A shop on PostgreSQL and RabbitMQ."""
    made = Shop(tmp_path, postgres_url, rabbitmq_url, launcher)
    made.configure()
    return made
