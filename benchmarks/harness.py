"""Servers, processes and clocks of the benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kombu

from benchmarks.shop import QUEUE
from tests.support.processes import Workshop, free_port
from tests.support.servers import Postgres, RabbitMQ, Redis
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Place:
    """The addresses of one measurement: a broker and a database of its own, and where tasks note that they ran.

    ``late``: its worker acknowledges late.
    """

    broker: str
    database: str
    notes: Path
    late: bool = False

    def env(self, *, outbox: bool, confirm: bool = False) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOX_", "BENCH_"))}
        env |= {"BENCH_BROKER": self.broker, "BENCH_NOTES": str(self.notes), "PYTHONPATH": str(ROOT)}
        if outbox:
            env["BENCH_DATABASE"] = self.database
        if confirm:
            env["BENCH_CONFIRM"] = "1"
        if self.late:
            env["BENCH_LATE"] = "1"
        return env

    def runs(self) -> list[tuple[int, float]]:
        """Every run of the task: its number and its moment."""
        if not self.notes.exists():
            return []
        pairs = (line.split() for line in self.notes.read_text().splitlines())
        return [(int(number), float(moment)) for number, moment in pairs]


class Bench:
    """The private servers, started when they are first needed."""

    def __init__(self) -> None:
        self.workshop = Workshop()
        self._places = 0

    @cached_property
    def postgres(self) -> Postgres:
        return Postgres(self.workshop)

    @cached_property
    def rabbitmq(self) -> RabbitMQ:
        return RabbitMQ(self.workshop)

    @cached_property
    def redis(self) -> Redis:
        return Redis(self.workshop)

    def close(self) -> None:
        for name in ("postgres", "rabbitmq", "redis"):
            if name in self.__dict__:
                self.__dict__[name].close()
        self.workshop.close()

    @contextlib.contextmanager
    def place(self, broker: str, *, late: bool = False) -> Iterator[Place]:
        """A fresh vhost (or Redis database) and a fresh database with the outbox's tables."""
        self._places += 1
        name = self.postgres.create_database()
        if broker == "redis":
            url = self.redis.url(self.redis.fresh_database())
        else:
            url = self.rabbitmq.url(self.rabbitmq.create_vhost())
        place = Place(url, self.postgres.url(name), self.workshop.folder / f"notes-{self._places}", late)
        try:
            run(place, "-m", "celery", "-A", "benchmarks.shop", "outbox", "migrate")
            yield place
        finally:
            self.postgres.drop_database(name)


def run(place: Place, *arguments: str, outbox: bool = True, confirm: bool = False) -> str:
    """Run a Python program to its end; return what it prints."""
    env = place.env(outbox=outbox, confirm=confirm)
    done = subprocess.run([sys.executable, *arguments], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def send(place: Place, mode: str, count: int, *, outbox: bool = True, confirm: bool = False) -> dict[str, Any]:
    """Run one mode of :mod:`benchmarks.sender`."""
    out = run(place, "-m", "benchmarks.sender", mode, str(count), outbox=outbox, confirm=confirm)
    return dict(json.loads(out.splitlines()[-1]))


@contextlib.contextmanager
def celery(place: Place, *arguments: str, outbox: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the celery program, stopped by SIGTERM at the end."""
    log = place.notes.with_suffix(f".{arguments[0]}.log")
    with log.open("ab") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "benchmarks.shop", *arguments],
            env=place.env(outbox=outbox),
            cwd=ROOT,
            stdout=target,
            stderr=target,
            start_new_session=True,
        )
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"{arguments[0]} ended with {process.returncode}")
    except BaseException:
        print(f"{log.name} ends with:\n{log.read_text()[-3000:]}", file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def relay(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """A relay that is ready, as an operator starts it."""
    port = free_port()
    with celery(place, "outbox", "relay", "--health-port", str(port), "-l", "WARNING") as process:
        eventually(lambda: process.poll() is not None or _answers(f"http://127.0.0.1:{port}/readyz"), within=60)
        yield process


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


@contextlib.contextmanager
def worker(place: Place, *, outbox: bool, pool: str = "prefork") -> Iterator[subprocess.Popen[bytes]]:
    """A stock worker that has run a first task in each of its processes."""
    options = ("worker", "-P", pool, "-c", "2", "-l", "WARNING", "--without-gossip", "--without-mingle")
    with celery(place, *options, outbox=outbox) as process:
        send(place, "apply_async", 40, outbox=False)
        eventually(lambda: process.poll() is not None or len(place.runs()) >= 40, within=60)
        if process.poll() is None:
            os.truncate(place.notes, 0)
        yield process


def drain(broker: str, expected: int) -> list[str]:
    """Take every message out of the task queue; return their task ids."""
    ids: list[str] = []
    with kombu.Connection(broker) as connection:
        channel = connection.channel()
        queue = kombu.Queue(QUEUE, kombu.Exchange(QUEUE), routing_key=QUEUE)
        consumer = kombu.Consumer(
            channel, [queue], no_ack=True, on_message=lambda message: ids.append(message.headers["id"])
        )
        with consumer, contextlib.suppress(TimeoutError, OSError):
            while True:
                connection.drain_events(timeout=2 if len(ids) < expected else 0.3)
    return ids


def cpu_seconds(pid: int, *, alone: bool = False) -> float:
    """User and system time of a process and (unless it is meant ``alone``) its living children."""
    total = 0.0
    for one in (pid, *(() if alone else _children(pid))):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def machine(bench: Bench) -> Mapping[str, str]:
    """What was measured on."""
    import celery as celery_package  # noqa: PLC0415 - the name is taken here

    models = [line.partition(":")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    versions = {
        "processor": f"{os.cpu_count()} cores,{(models or [' ?'])[0]}",
        "python": sys.version.split()[0],
        "celery": celery_package.__version__,
        "kombu": kombu.__version__,
        "postgresql": str(bench.postgres.execute("SHOW server_version")[0][0]),
    }
    if "rabbitmq" in bench.__dict__:
        versions["rabbitmq"] = bench.rabbitmq.ctl("version").strip()
    return versions
