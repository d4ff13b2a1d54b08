"""Celery workers over the embedded broker: tasks run, inspect works, and a kill loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

import outbox_relay.publish  # noqa: F401 - it makes the transport known
from tests.publish.bench import make_app
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]

APP = """
import os, sys, time
import outbox_relay.publish
from celery import Celery
app = Celery("demo", broker=os.environ["BROKER"], set_as_current=False)
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)

@app.task(name="note")
def note(path, text):
    with open(path, "a") as file:
        file.write(text + "\\n")
    if text == "slow":
        time.sleep(60)
"""


class Worker:
    """A real Celery worker over the embedded broker."""

    def __init__(self, folder: Path, url: str, pool: str) -> None:
        self.log = (folder / f"worker-{monotonic()}.log").open("wb")
        command = [sys.executable, "-m", "celery", "-A", "demo_app", "worker", "-P", pool, "-c", "2", "-l", "INFO"]
        environment = {**os.environ, "BROKER": url, "PYTHONPATH": f"{folder}:{ROOT}"}
        self.process = subprocess.Popen(
            [*command, "-n", f"{pool}@%h"], cwd=folder, env=environment, stdout=self.log, stderr=self.log
        )

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
        self.log.close()


@pytest.fixture
def demo(tmp_path: Path, embedded_url: str) -> Path:
    (tmp_path / "demo_app.py").write_text(APP)
    return tmp_path


def send(url: str, arguments: Sequence[Any]) -> None:
    app = make_app(url, task_default_queue="celery")
    app.send_task("note", arguments)
    app.close()


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_celery_worker_runs_tasks_answers_ping_and_stops(demo: Path, embedded_url: str, pool: str) -> None:
    notes = demo / "notes"
    worker = Worker(demo, embedded_url, pool)
    try:
        for number in range(20):
            send(embedded_url, (str(notes), str(number)))
        eventually(lambda: sorted(lines(notes), key=int) == [str(number) for number in range(20)], within=40)
        command = [sys.executable, "-m", "celery", "-A", "demo_app", "inspect", "ping", "--json", "-t", "2"]
        environment = {**os.environ, "BROKER": embedded_url, "PYTHONPATH": f"{demo}:{ROOT}"}
        ping = subprocess.run(
            command, cwd=demo, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        (answer,) = json.loads(ping.stdout).values()
        assert answer == {"ok": "pong"}
        assert worker.stop() == 0
    finally:
        worker.kill()


def test_the_task_of_a_killed_worker_runs_again_on_another(demo: Path, embedded_url: str) -> None:
    notes = demo / "notes"
    first = Worker(demo, embedded_url, "prefork")
    second = None
    try:
        send(embedded_url, (str(notes), "slow"))
        eventually(lambda: lines(notes) == ["slow"], within=40)
        first.kill()
        second = Worker(demo, embedded_url, "solo")
        eventually(lambda: lines(notes) == ["slow", "slow"], within=40)
    finally:
        first.kill()
        if second is not None:
            second.kill()
