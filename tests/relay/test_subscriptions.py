"""A relay asks workers to consume for the namespaces that they are meant to serve, and do not serve yet."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from outbox_relay.core.beacon import Beacon
from outbox_relay.relay.subscriptions import COMMAND, Subscriptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.relay.conftest import Bench


class Ears:
    """A worker's end of Celery's control commands, without the worker."""

    def __init__(self, app: Any) -> None:
        self.asked: list[list[str]] = []
        self._connection = app.connection_for_read()
        node = app.control.mailbox.Node("w@host", channel=self._connection.channel(), handlers={COMMAND: self._hear})
        self._consumer = node.listen()

    def _hear(self, *_: Any, namespaces: list[str], **__: Any) -> None:
        self.asked.append(namespaces)

    def hear(self) -> list[list[str]]:
        with contextlib.suppress(socket.timeout, TimeoutError):
            while True:
                self._connection.drain_events(timeout=0.3)
        heard, self.asked[:] = list(self.asked), []
        return heard

    def close(self) -> None:
        self._connection.release()


@pytest.fixture
def ears(bench: Bench) -> Iterator[Ears]:
    ears = Ears(bench.outbox.app)
    yield ears
    ears.close()


def beacon(**fields: Any) -> Beacon:
    known = {"instance": uuid4(), "hostname": "w@host", "pool": "prefork", "queues": ("shop",), "serves": ("default",)}
    return Beacon(**{**known, **fields})


def test_a_worker_is_asked_for_what_it_lacks_and_not_again_before_it_could_follow(bench: Bench, ears: Ears) -> None:
    now = [100.0]
    subscriptions = Subscriptions(bench.parts, lambda: now[0])
    for name in ("acme", "globex", "default"):
        bench.stage(namespace=name)
    worker = beacon()
    subscriptions.note(worker)
    subscriptions.tick()
    assert ears.hear() == [["acme", "globex"]]
    beat = bench.parts.leases.heartbeat.total_seconds()
    for _ in range(2):
        now[0] += beat
        subscriptions.note(beacon(instance=worker.instance))
        subscriptions.tick()
    assert ears.hear() == []
    now[0] += beat
    subscriptions.note(beacon(instance=worker.instance, serves=("default", "acme")))
    subscriptions.tick()
    assert ears.hear() == [["globex"]]


def test_a_worker_is_asked_for_no_other_namespaces_than_it_is_meant_to_serve(bench: Bench, ears: Ears) -> None:
    subscriptions = Subscriptions(bench.parts)
    for name in ("acme", "globex"):
        bench.stage(namespace=name)
    subscriptions.note(beacon(namespaces=("acme", "initech"), serves=()))
    subscriptions.tick()
    assert ears.hear() == [["acme"]]


def test_a_worker_that_was_started_anew_under_its_name_is_asked_at_once(bench: Bench, ears: Ears) -> None:
    subscriptions = Subscriptions(bench.parts)
    bench.stage(namespace="acme")
    subscriptions.note(beacon())
    subscriptions.tick()
    assert ears.hear() == [["acme"]]
    subscriptions.note(beacon())
    subscriptions.tick()
    assert ears.hear() == [["acme"]]


def test_a_worker_that_has_fallen_silent_is_not_asked(bench: Bench, ears: Ears) -> None:
    now = [100.0]
    subscriptions = Subscriptions(bench.parts, lambda: now[0])
    bench.stage(namespace="acme")
    subscriptions.note(beacon())
    now[0] += bench.parts.settings.worker_ttl.total_seconds() + 1
    subscriptions.tick()
    assert ears.hear() == []
