"""The embedded broker: nothing is lost to concurrency, to a kill, or to a name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue

import outbox_relay.publish  # noqa: F401 - it makes the transport known
from outbox_relay.publish.folder import Folder
from outbox_relay.publish.keeper import Keeper
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def connection(embedded_url: str) -> Iterator[Connection]:
    with Connection(embedded_url) as connection:
        yield connection


def publish(connection: Connection, *bodies: Any, queue: str = "q", **options: Any) -> None:
    with connection.channel() as channel:
        producer = channel.Producer()
        for body in bodies:
            producer.publish(body, routing_key=queue, **options)


def take_all(connection: Connection, queue: str = "q") -> list[Any]:
    with connection.channel() as channel:
        taken = []
        while (message := Queue(queue)(channel).get(no_ack=True)) is not None:
            taken.append(message.payload)
        return taken


def drain(connection: Connection, until: Any, within: float = 10.0) -> None:
    def step() -> bool:
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        return bool(until())

    eventually(step, within, every=0)


class Script:
    """A Python process of a test's."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, within: float = 60) -> str:
        output, _ = self.process.communicate(timeout=within)
        assert self.process.returncode == 0
        return output

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


# -- concurrency --------------------------------------------------------------------------------------------------

WRITER = """
import sys, outbox_relay.publish
from kombu import Connection
url, name, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Connection(url) as connection:
    producer = connection.Producer()
    for number in range(count):
        producer.publish({"id": f"{name}-{number}", "pad": "x" * size}, routing_key="q")
"""

READER = """
import sys, outbox_relay.publish
from kombu import Connection, Queue
url, total = sys.argv[1], int(sys.argv[2])
seen = []
def on_message(body, message):
    seen.append(body["id"])
    message.ack()
with Connection(url) as connection, connection.Consumer([Queue("q"), Queue("end")], callbacks=[on_message]):
    while "end" not in seen:
        try:
            connection.drain_events(timeout=1)
        except TimeoutError:
            pass
print(*[one for one in seen if one != "end"])
"""


@pytest.mark.parametrize(("size", "count"), [(300, 400), (200_000, 60)])
def test_concurrent_writers_and_readers_lose_nothing(embedded_url: str, size: int, count: int) -> None:
    readers = [Script(READER, embedded_url, "0") for _ in range(2)]
    writers = [Script(WRITER, embedded_url, name, str(count), str(size)) for name in ("a", "b")]
    for writer in writers:
        writer.end()
    with Connection(embedded_url) as connection:
        with connection.channel() as channel:
            eventually(lambda: channel._size("q") == 0, within=30)
        publish(connection, {"id": "end"}, {"id": "end"}, queue="end")
    seen = " ".join(reader.end() for reader in readers).split()
    assert sorted(seen) == sorted(f"{name}-{number}" for name in ("a", "b") for number in range(count))


def test_messages_come_in_their_order_urgent_ones_first(connection: Connection) -> None:
    publish(connection, *range(600))
    publish(connection, "urgent", priority=9)
    assert take_all(connection) == ["urgent", *range(600)]


# -- consumers that die -------------------------------------------------------------------------------------------

HOLDER = """
import sys, time, outbox_relay.publish
from kombu import Connection, Queue
held = []
with Connection(sys.argv[1]) as connection, connection.Consumer([Queue("q")], callbacks=[lambda b, m: held.append(m)]):
    while len(held) < 3:
        connection.drain_events(timeout=10)
    held[0].ack()
    print("held", flush=True)
    time.sleep(60)
"""


def test_messages_of_a_killed_consumer_come_back_by_themselves_and_are_marked(connection: Connection) -> None:
    publish(connection, 1, 2, 3, 4)
    holder = Script(HOLDER, connection.as_uri())
    assert holder.line() == "held"
    seen: list[tuple[int, bool]] = []

    def on_message(body: int, message: Any) -> None:
        seen.append((body, message.delivery_info.get("redelivered", False)))
        message.ack()

    with connection.Consumer([Queue("q")], callbacks=[on_message]):
        drain(connection, lambda: seen == [(4, False)])
        holder.kill()
        drain(connection, lambda: len(seen) == 3)
    assert seen == [(4, False), (2, True), (3, True)]
    assert os.listdir(folder_of(connection) / "taken") in ([], [os.path.basename(str(keeper_path(connection)))])


def folder_of(connection: Connection) -> Path:
    return Path(connection.virtual_host)


def keeper_path(connection: Connection) -> str | None:
    return str(connection.transport.keeper._path)


def test_messages_of_a_living_consumer_stay_with_it(embedded_url: str, connection: Connection) -> None:
    publish(connection, 1)
    with connection.channel() as channel:
        message = Queue("q")(channel).get()
        with Connection(embedded_url) as other:
            other.connect()
            assert other.transport.keeper.recover() == 0
            assert take_all(other) == []
        message.ack()
    assert take_all(connection) == []


def test_a_fork_does_not_keep_a_dead_consumers_lock(tmp_path: Path) -> None:
    """A child that outlives its killed parent must not hold back what the parent had taken."""
    code = """
import os, sys, time
from outbox_relay.publish.folder import Folder
from outbox_relay.publish.keeper import Keeper
folder = Folder(sys.argv[1])
keeper = Keeper(folder.root)
assert folder.take("q", keeper) is not None
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""
    folder = Folder(tmp_path)
    folder.put("q", b"message")
    parent = Script(code, str(tmp_path))
    child = int(parent.line())
    os.kill(parent.process.pid, signal.SIGKILL)
    parent.process.wait(timeout=10)
    try:
        keeper = Keeper(folder.root)
        eventually(keeper.recover)
        taken = folder.take("q", keeper)
        assert taken is not None
        assert taken.redelivered
    finally:
        os.kill(child, signal.SIGKILL)
        parent.process.communicate(timeout=10)


def test_closing_gives_back_what_was_not_acknowledged(embedded_url: str, connection: Connection) -> None:
    publish(connection, 1, 2)
    with Connection(embedded_url) as other:
        consumer = other.Consumer([Queue("q")], callbacks=[lambda body, message: None])
        with consumer:
            other.drain_events(timeout=2)
            other.drain_events(timeout=2)
    assert take_all(connection) == [1, 2]
    assert os.listdir(folder_of(connection) / "taken") in ([], [os.path.basename(str(keeper_path(connection)))])


def test_a_requeued_message_keeps_its_place_and_is_marked(connection: Connection) -> None:
    publish(connection, 1, 2)
    with connection.channel() as channel:
        queue = Queue("q")(channel)
        first = queue.get()
        first.requeue()
        again = queue.get()
        assert (again.payload, again.delivery_info["redelivered"]) == (1, True)
        again.reject()
    assert take_all(connection) == [2]


# -- queues -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["acme:work@box-7", "a/b", "..", ".", "", "q.msg", "é" * 120, "x" * 255, "celery@h.pidbox"]
)
def test_any_name_is_a_queue_of_its_own(connection: Connection, name: str) -> None:
    publish(connection, "here", queue=name)
    publish(connection, "there", queue=name + "2")
    with connection.channel() as channel:
        assert channel._size(name) == 1
        assert channel.queue_purge(name) == 1
        assert channel._size(name) == 0
    assert take_all(connection, name + "2") == ["there"]
    assert set(os.listdir(folder_of(connection).parent)) == {folder_of(connection).name}


def test_exchanges_are_shared_between_processes(embedded_url: str, connection: Connection) -> None:
    topic = Exchange("media", type="topic")
    with connection.channel() as channel:
        Queue("video", topic, "video.#")(channel).declare()
    code = """
import sys, outbox_relay.publish
from kombu import Connection, Exchange
with Connection(sys.argv[1]) as connection:
    exchange = Exchange("media", type="topic")
    connection.Producer(exchange=exchange).publish("hd", routing_key="video.hd")
    connection.Producer(exchange=exchange).publish("mp3", routing_key="audio.mp3")
"""
    Script(code, embedded_url).end()
    assert take_all(connection, "video") == ["hd"]


def test_a_queue_that_expires_is_given_up_with_its_bindings(connection: Connection) -> None:
    fanout = Exchange("news", type="fanout")
    with connection.channel() as channel:
        Queue("gone", fanout, expires=0.2)(channel).declare()
        Queue("stays", fanout)(channel).declare()
        folder = channel.folder
        eventually(lambda: folder.expired("gone"))
        channel.Producer(exchange=fanout).publish("hello")
        assert [row.queue for row in channel.get_table("news")] == ["stays"]
        assert channel._size("gone") == 0
    assert take_all(connection, "stays") == ["hello"]


def test_a_deleted_queue_leaves_nothing_behind(connection: Connection) -> None:
    with connection.channel() as channel:
        queue = Queue("q", Exchange("direct", type="direct"), "k")(channel)
        queue.declare()
        publish(connection, 1)
        queue.delete()
        assert channel.get_table("direct") == []
    assert os.listdir(folder_of(connection) / "queues") == []


def test_a_broker_without_a_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="names no folder"), Connection("embedded://") as connection:
        connection.connect()


def test_a_cleared_folder_is_made_again(connection: Connection) -> None:
    publish(connection, 1)
    with connection.channel() as channel:
        assert Queue("q")(channel).get() is not None
    shutil.rmtree(folder_of(connection))
    publish(connection, 2)
    assert take_all(connection) == [2]


def test_a_writer_that_died_leaves_no_message(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    part = tmp_path / "parts" / "half"
    part.write_bytes(b"{")
    os.utime(part, (0, 0))
    assert folder.size("q") == 0
    Folder(tmp_path)
    assert not part.exists()


# -- speed --------------------------------------------------------------------------------------------------------


def test_an_idle_consumer_costs_little_and_is_quick(embedded_url: str, connection: Connection) -> None:
    seen: list[float] = []

    def on_message(body: Any, message: Any) -> None:
        seen.append(monotonic())
        message.ack()

    with Connection(embedded_url) as other, other.channel() as channel:
        queues = [Queue(name) for name in ("q", "r", "s", "t")]
        with Consumer(connection, queues, callbacks=[on_message]):
            begin, cpu = monotonic(), process_time()
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=3)
            assert (process_time() - cpu) / (monotonic() - begin) < 0.05
            sent = monotonic()
            channel.Producer().publish(1, routing_key="t")
            drain(connection, lambda: seen)
            assert seen[0] - sent < 1
