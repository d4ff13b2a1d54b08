"""A shop with its database, its broker and its processes, as a flow test drives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import sqlalchemy as sa
from kombu import Connection

from tests.flow import shop
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_relay.core.row import Staged
    from outbox_relay.outbox import Outbox

ROOT = Path(__file__).parents[2]

#: Leases and heartbeats that end within the patience of a test. A busy machine may need a second for anything.
QUICK = {
    "outbox_heartbeat": 0.5,
    "outbox_worker_ttl": 2,
    "outbox_run_lease": 3,
    "outbox_queue_lease": 6,
    "outbox_publish_lease": 2,
    "outbox_rearm_interval": 0.5,
    "outbox_batch_size": 200,
}
PLAIN = {
    "outbox_enabled": True,
    "outbox_poll_interval": 0.5,
    "outbox_backoff_base": 0.2,
    "outbox_backoff_max": 1,
    "outbox_drain_timeout": 10,
    "broker_connection_retry_on_startup": True,
    "worker_hijack_root_logger": True,
    "worker_send_task_events": False,
}


class Launcher:
    """The process that all processes of the shops are forked from; see launcher.py. ``env`` is theirs."""

    def __init__(self, *, python: str = sys.executable, **env: str) -> None:
        self.env = env
        self._python = python
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> Any:
        if self._process is None:
            command = [self._python, str(Path(__file__).with_name("launcher.py"))]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **self.env, "PYTHONPATH": str(ROOT)}, **pipes
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=30)
            self._process = None


class Program:
    """A process of the shop, in a session of its own."""

    def __init__(self, launcher: Launcher, name: str, arguments: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self.code: int | None = None
        self._launcher = launcher
        log.touch()
        self.pid: int = launcher.ask({"start": {"arguments": arguments, "env": env, "log": str(log), "cwd": str(ROOT)}})

    @property
    def ended(self) -> bool:
        if self.code is None:
            self.code = self._launcher.ask({"poll": self.pid})
        return self.code is not None

    def says(self, text: str) -> bool:
        """Whether its log has ``text``."""
        if text in self.log.read_text(errors="replace"):
            return True
        assert not self.ended, f"{self.name} ended with {self.code}: {self.tail()}"
        return False

    def count(self, text: str) -> int:
        return self.log.read_text(errors="replace").count(text)

    def send(self, signum: int) -> None:
        if not self.ended:
            os.kill(self.pid, signum)

    def end(self, signum: int = signal.SIGTERM, within: float = 20) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        self.send(signum)
        return self.wait(within)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def wait(self, within: float = 20) -> int:
        """Wait until it ends by itself."""
        deadline = time.monotonic() + within
        while not self.ended:
            assert time.monotonic() < deadline, f"{self.name} did not end within {within:g} s: {self.tail()}"
            time.sleep(0.02)
        assert self.code is not None
        return self.code

    def tail(self, size: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-size:]


class Shop:
    """A shop of a test's own. Use it as a context manager: its end is the end of its processes."""

    module = "tests.flow.shop"  # what its processes load

    def __init__(self, launcher: Launcher, folder: Path, database_url: str, broker_url: str, **conf: Any) -> None:
        self.launcher = launcher
        self.folder = folder
        self.database_url = database_url
        self.conf = {
            **PLAIN,
            "outbox_database_url": database_url,
            "broker_url": broker_url,
            "task_default_queue": f"shop{uuid4().hex[:8]}" if "redis" in broker_url else "shop",
            **conf,
        }
        self.app = shop.make(self.conf, folder)
        self.outbox: Outbox = self.app.outbox
        self.outbox.store.migrate()
        self.engine = sa.create_engine(database_url)
        if self.engine.dialect.name == "sqlite":
            self.outbox.configure_sqlite(self.engine)
        self.programs: list[Program] = []

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            if not program.ended:
                program.send(signal.SIGTERM)
        for program in self.programs:
            try:
                program.wait(15)
            except AssertionError:
                program.kill()
            print(f"--- {program.name}: {program.code}\n{program.tail()}")
        self.engine.dispose()
        self.outbox.close()
        self.app.close()

    def hang_up(self) -> None:
        """Close the test's own connections to the database."""
        self.engine.dispose()
        self.outbox.store.engine.dispose()

    # -- processes --------------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        *arguments: str,
        dies_at: str = "",
        env: dict[str, str] | None = None,
        launcher: Launcher | None = None,
    ) -> Program:
        env = {
            **os.environ,
            **(launcher or self.launcher).env,
            **(env or {}),
            shop.CONF: json.dumps(self.conf),
            shop.FOLDER: str(self.folder),
            shop.DIES_AT: dies_at,
            "PYTHONPATH": str(ROOT),
        }
        number = 1 + sum(program.name.startswith(name) for program in self.programs)
        command = ["-A", self.module, *arguments]
        log = self.folder / f"{name}-{number}.log"
        program = Program(launcher or self.launcher, f"{name}-{number}", command, env, log)
        self.programs.append(program)
        return program

    def relay(self, *options: str, dies_at: str = "", launcher: Launcher | None = None, wait: bool = True) -> Program:
        program = self.start("relay", "outbox", "relay", "-l", "DEBUG", *options, dies_at=dies_at, launcher=launcher)
        if wait:
            eventually(lambda: program.says("started on"), 20, what="the relay's start")
        return program

    def worker(
        self,
        *options: str,
        pool: str = "prefork",
        dies_at: str = "",
        env: dict[str, str] | None = None,
        launcher: Launcher | None = None,
        wait: bool = True,
    ) -> Program:
        name = f"w{len(self.programs)}@test"
        stock = ["worker", "-l", "INFO", "-n", name, "-P", pool, "-c", "2", "--without-mingle", "--without-gossip"]
        program = self.start("worker", *stock, *options, dies_at=dies_at, env=env, launcher=launcher)
        if wait:
            eventually(lambda: program.says("ready."), 20, what="the worker's start")
        return program

    # -- rows -------------------------------------------------------------------------------------------------------

    def task(self, name: str, *args: Any, **options: Any) -> Any:
        """The signature of a task of the shop."""
        return self.app.signature(f"shop.{name}", args=args, **options)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        with self.engine.begin() as connection:
            yield connection

    def stage(self, name: str, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Staged:
        """Stage one task and commit. ``options`` are Celery's, other keywords are the outbox's."""
        with self.transaction() as connection:
            return self.outbox.stage(connection, self.task(name, *args, **(options or {})), **kwargs)

    def stage_many(self, count: int, name: str = "charge", **kwargs: Any) -> list[Staged]:
        with self.transaction() as connection:
            return self.outbox.stage_many(connection, [self.task(name, n) for n in range(count)], **kwargs)

    def row(self, staged: Staged | int) -> Any:
        row_id = staged if isinstance(staged, int) else staged.row_id
        (row,) = self.outbox.store.find(str(row_id))
        return row

    def status(self, staged: Staged) -> str:
        return str(self.row(staged).status.value)

    def becomes(self, staged: Staged, status: str, within: float = 20) -> Any:
        """Wait until a row has that status, and return it."""

        def has() -> bool:
            row = self.row(staged)
            assert row.status == status, row
            return True

        eventually(has, within, every=0.05, what=f"row {staged.row_id} {status}")
        return self.row(staged)

    def counts(self) -> dict[str, int]:
        return {state: count for state, count in self.outbox.store.counts().items() if count}

    def all_done(self, count: int, within: float = 30) -> None:
        """Wait until that many rows are done, and no other row is left."""

        def done() -> bool:
            assert self.counts() == {"done": count}
            return True

        eventually(done, within, every=0.05, what=f"{count} rows done")

    def open_gate(self, gate: str = "gate") -> None:
        (self.folder / gate).touch()

    # -- runs -------------------------------------------------------------------------------------------------------

    def runs(self, staged: Staged | None = None) -> list[str]:
        """The task ids of all runs so far, or of those of one row."""
        file = self.folder / "runs"
        lines = file.read_text().splitlines() if file.exists() else []
        ids = [line.split()[0] for line in lines]
        return ids if staged is None else [one for one in ids if one == staged.task_id]

    def waiting(self, queue: str | None = None) -> int:
        """How many messages are ready in a queue of the broker."""
        name = queue or self.conf["task_default_queue"]
        with Connection(self.conf["broker_url"]) as connection:
            return int(connection.default_channel.queue_declare(name, passive=True).message_count)
