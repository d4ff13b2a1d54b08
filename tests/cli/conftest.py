"""A shop on disk, and its command line run as people run it: as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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


@dataclass
class Shop:
    """A folder with a ``shop.py`` in it."""

    folder: Path
    database: str
    broker: str
    environ: dict[str, str] = field(default_factory=dict)

    def configure(self, **conf: Any) -> None:
        text = APP.format(broker=conf.pop("broker", self.broker), database=self.database, conf=conf)
        (self.folder / "shop.py").write_text(text)

    def run(self, *arguments: str, app: str | None = "shop", env: Mapping[str, str] | None = None) -> Result:
        """Run ``celery -A shop …``; nothing can be typed into it."""
        named = () if app is None else ("-A", app)
        done = subprocess.run(
            [sys.executable, "-m", "celery", *named, *arguments],
            cwd=self.folder,
            env={**clean_environment(), **self.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    def outbox(self, *arguments: str, **options: Any) -> Result:
        return self.run("outbox", *arguments, **options)

    def ok(self, *arguments: str) -> Result:
        """Run a verb that has to succeed."""
        result = self.outbox(*arguments)
        assert result.code == 0, result
        return result


def clean_environment() -> dict[str, str]:
    """What a person's shell has, without what this test session was given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "CELERY_"))}
    return {**kept, "PYTHONPATH": os.getcwd(), "PYTHONWARNINGS": "default"}


@pytest.fixture
def shop(tmp_path: Path, database_url: str, embedded_url: str) -> Shop:
    """A shop whose tables are not made yet, on each database."""
    made = Shop(tmp_path, database_url, embedded_url)
    made.configure()
    return made


@pytest.fixture
def light_shop(tmp_path: Path, sqlite_url: str, embedded_url: str) -> Shop:
    """A shop on SQLite alone, for rules that no database changes."""
    made = Shop(tmp_path, sqlite_url, embedded_url)
    made.configure()
    return made


@pytest.fixture
def big_shop(tmp_path: Path, postgres_url: str, rabbitmq_url: str) -> Shop:
    """A shop on PostgreSQL and RabbitMQ."""
    made = Shop(tmp_path, postgres_url, rabbitmq_url)
    made.configure()
    return made
