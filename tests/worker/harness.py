"""A real worker in a process of its own, messages put into its queue by hand, and what it reports."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu import Connection, Consumer, Producer
from kombu.utils.uuid import uuid as new_id

from outbox_relay.core.beacon import Beacon, decode_beacon
from outbox_relay.core.settlement import HEADER, Delivery, Kind, Settlement
from outbox_relay.core.wire import decode_settlements
from outbox_relay.publish.queues import beacons_for, settlements_queue
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = "outbox.settlements.shop"
ROOT = Path(__file__).parents[2]
FINAL = frozenset({Kind.DONE, Kind.FAILED, Kind.AGAIN, Kind.LOST, Kind.UNKNOWN, Kind.RETRY, Kind.CANCELLED})


@dataclass
class Sent:
    """A message that a test has put into the worker's queue."""

    delivery: Delivery
    task_id: str


@dataclass
class Desk:
    """The test's end of the broker: it sends rows' messages and reads reports."""

    url: str
    reports: list[Settlement] = field(default_factory=list)
    beacons: list[Beacon] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    _rows: int = 0

    def __post_init__(self) -> None:
        self.connection = Connection(self.url)
        self.producer = Producer(self.connection.channel())
        queues = [settlements_queue(QUEUE), beacons_for(QUEUE)]
        self.consumer = Consumer(self.connection.channel(), queues, on_message=self._receive, accept=["json"])
        self.consumer.consume()

    def close(self) -> None:
        self.connection.release()

    def _receive(self, message: Any) -> None:
        body = message.body if isinstance(message.body, bytes) else message.body.encode()
        if b'"settlements"' in body:
            self.bodies.append(body)
            self.reports += decode_settlements(body)[1]
        else:
            self.beacons.append(decode_beacon(body))
        message.ack()

    def read(self) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            while True:
                self.connection.drain_events(timeout=0.05)

    def send(
        self,
        task: str,
        *args: Any,
        queue: str = "celery",
        body: Any = None,
        headers: dict[str, Any] | None = None,
        drop: tuple[str, ...] = (),
        raw: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Sent:
        """Publish a message as a relay would; ``drop`` removes headers, ``raw`` are kombu's own options."""
        self._rows += 1
        delivery = Delivery(self._rows, 0, uuid.uuid4(), QUEUE)
        task_id = new_id()
        full: dict[str, Any] = {
            "lang": "py", "task": f"tests.worker.shop.{task}", "id": task_id, "root_id": task_id, "parent_id": None,
            "group": None, "retries": 0, "eta": None, "expires": None, "timelimit": [None, None], "shadow": None,
            "argsrepr": repr(args), "kwargsrepr": repr(kwargs), "origin": "gen1@test", "ignore_result": False,
            "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {}, "group_index": None,
            HEADER: delivery.header(), **(headers or {}),
        }  # fmt: skip
        for name in drop:
            full.pop(name)
        embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
        self.producer.publish(
            [list(args), kwargs, embed] if body is None else body,
            routing_key=queue,
            headers=full,
            correlation_id=task_id,
            **{"serializer": "json", **(raw or {})},
        )
        return Sent(delivery, task_id)

    def of(self, sent: Sent) -> list[Settlement]:
        return [one for one in self.reports if one.delivery.token == sent.delivery.token]

    def wait(self, *sent: Sent, within: float = 40) -> list[Settlement]:
        """Wait until each has been reported to its end, and return the last report of each."""

        def all_final() -> bool:
            self.read()
            missing = [one.delivery.row_id for one in sent if not any(r.kind in FINAL for r in self.of(one))]
            assert not missing, f"rows {missing} have no report of their end"
            return True

        eventually(all_final, within)
        return [[report for report in self.of(one) if report.kind in FINAL][-1] for one in sent]

    def wait_for(self, sent: Sent, kind: Kind, within: float = 40) -> Settlement:
        def there() -> Settlement | None:
            self.read()
            return next((one for one in self.of(sent) if one.kind is kind), None)

        found = eventually(there, within, what=f"a report {kind.value!r}")
        assert found is not None
        return found

    def depth(self, queue: str) -> int:
        with self.connection.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)


class Worker:
    """``celery worker`` on the test's app, with its log in ``folder``."""

    def __init__(self, folder: Path, broker: str, *options: str, **env: str) -> None:
        self.folder = folder
        self.log = folder / "worker.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.worker.shop", "worker", "-l", "INFO",
                   "--without-gossip", "--without-mingle", *options]  # fmt: skip
        settings = {"SHOP_BROKER": broker, "SHOP_NOTES": str(folder), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **settings, **env}, stdout=log, stderr=log, cwd=folder, process_group=0
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def notes(self) -> list[str]:
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def wait_note(self, text: str, within: float = 30) -> None:
        eventually(lambda: text in self.notes(), within, what=f"the note {text!r}")

    def wait_ready(self, within: float = 40) -> None:
        def ready() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"the worker ended at its start: {self.text()[-3000:]}")
            return "ready." in self.text()

        eventually(ready, within)

    def send_signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def wait_end(self, within: float = 40) -> int:
        return self.process.wait(within)

    def stop(self) -> int:
        """A warm shutdown; one that does not come to an end fails the test."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def running(folder: Path, broker: str, *options: str, **env: str) -> Iterator[tuple[Worker, Desk]]:
    """A worker that is ready, and the test's end of its broker."""
    desk = Desk(broker)
    worker = Worker(folder, broker, *options, **env)
    try:
        worker.wait_ready()
        yield worker, desk
    except BaseException:
        print(worker.text()[-6000:])
        raise
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.stop()
        desk.close()
