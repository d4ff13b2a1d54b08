"""A relay as a whole, in a thread: its start, its health, its end."""

from __future__ import annotations

import gc
import os
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outbox_relay.errors import SettingsError
from outbox_relay.relay.health import HealthServer, Metrics, Pulse, Tally
from outbox_relay.relay.service import Relay
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.relay.conftest import Bench, OpenBench
    from tests.support.servers import Postgres, RabbitMQ


@contextmanager
def running(bench: Bench, **options: Any) -> Iterator[Relay]:
    with begun(bench, **options) as relay:
        eventually(lambda: bench.said("relay.started"), 20)
        yield relay


@contextmanager
def begun(bench: Bench, **options: Any) -> Iterator[Relay]:
    """A relay that may still wait for what it needs."""
    relay, codes = Relay(bench.outbox, **options), []
    thread = threading.Thread(target=lambda: codes.append(relay.run()))
    thread.start()
    try:
        yield relay
    finally:
        relay.stop()
        thread.join(30)
    assert codes == [0]


class Ours:
    """This process's own connections to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._remote = f":{port:04X}"

    def sockets(self) -> int:
        inodes = {
            fields[9]
            for table in ("tcp", "tcp6")
            for fields in map(str.split, Path(f"/proc/self/net/{table}").read_text().splitlines()[1:])
            if fields[2].endswith(self._remote)
        }
        links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return sum(link.removeprefix("socket:[").removesuffix("]") in inodes for link in links)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_relay_publishes_from_its_start_to_its_end_and_leaves_the_register(bench: Bench) -> None:
    with running(bench):
        (staged,) = bench.stage()
        eventually(lambda: bench.row(staged).published_at, 20)
        eventually(bench.outbox.store.relays, 20)
    assert bench.outbox.store.relays() == []
    assert [one["reason"] for one in bench.said("relay.draining")] == ["it was told to"]


def test_a_relay_leaves_no_connection_to_its_broker_behind(
    open_bench: OpenBench, sqlite_url: str, rabbitmq_url: str
) -> None:
    """Whoever embeds a relay in a process of its own gets its sockets back when it ends."""
    bench = open_bench(sqlite_url, rabbitmq_url, outbox_rearm_interval=0.2)
    port = bench.outbox.app.connection_for_write().port

    ours = Ours(port)
    bench.publisher.pulse()
    before = ours.sockets()
    with running(bench):
        (staged,) = bench.stage()
        eventually(lambda: bench.row(staged).published_at, 20)
        eventually(lambda: ours.sockets() >= before + 3, 20)  # to publish, to settle, and to look at queues
    assert ours.sockets() == before


def test_health_and_metrics_are_served_over_http(bench: Bench) -> None:
    port = free_port()
    with running(bench, health_port=port):
        staged = bench.stage(3)
        eventually(lambda: all(bench.row(one).published_at for one in staged), 20)
        assert get(port, "/livez") == (200, "ok\n")
        assert get(port, "/readyz") == (200, "ok\n")
        assert get(port, "/elsewhere")[0] == 404
        status, text = get(port, "/metrics")
    assert status == 200
    assert "outbox_published_total 3.0" in text
    assert 'outbox_rows{state="claimed"} 3.0' in text
    assert "outbox_database_up 1.0" in text


def test_a_relay_that_only_sweeps_notes_which_namespaces_had_rows(
    open_bench: OpenBench, sqlite_url: str, embedded_url: str
) -> None:
    beats = {"outbox_heartbeat": 0.5, "outbox_worker_ttl": 30, "outbox_run_lease": 3, "outbox_queue_lease": 6}
    bench = open_bench(sqlite_url, embedded_url, **beats)
    with running(bench, only="sweep"):
        bench.stage(namespace="acme")
        eventually(lambda: bench.outbox.store.governing.namespaces(None, "acme")[0].last_seen_at, 20)


@pytest.mark.owns_server
def test_liveness_is_not_tied_to_the_database_and_readiness_is(
    open_bench: OpenBench, postgres: Postgres, postgres_url: str, embedded_url: str
) -> None:
    bench = open_bench(postgres_url, embedded_url, outbox_poll_interval=0.2)
    port = free_port()
    with running(bench, health_port=port):
        eventually(lambda: get(port, "/readyz")[0] == 200, 20)
        postgres.stop()
        try:
            eventually(lambda: get(port, "/readyz")[0] == 503, 20)
            assert "the database is away" in get(port, "/readyz")[1]
            assert get(port, "/livez")[0] == 200
            assert "outbox_database_up 0.0" in get(port, "/metrics")[1]
        finally:
            postgres.start()
        eventually(lambda: get(port, "/readyz")[0] == 200, 20)


def test_a_relay_that_starts_without_its_database_waits_for_it(
    open_bench: OpenBench, postgres: Postgres, postgres_url: str, embedded_url: str
) -> None:
    """It says so once, lives, and is not ready."""
    open_bench(postgres_url, embedded_url)  # makes the tables
    proxy = Proxy(postgres.port)
    proxy.shut()
    port = free_port()
    try:
        bench = open_bench(proxy.url(postgres_url), embedded_url, migrate=False)
        with begun(bench, health_port=port):
            eventually(lambda: bench.said("relay.waits"), 20)
            assert get(port, "/livez")[0] == 200
            assert "the database is away" in get(port, "/readyz")[1]
            proxy.reopen()
            eventually(lambda: bench.said("relay.started"), 20)
            eventually(lambda: get(port, "/readyz")[0] == 200, 20)
        assert [len(bench.said(name)) for name in ("store.lost", "relay.waits", "store.back")] == [1, 1, 1]
    finally:
        proxy.close()


def test_a_relay_that_waits_for_its_broker_is_in_the_register(
    open_bench: OpenBench, rabbitmq: RabbitMQ, rabbitmq_url: str, sqlite_url: str
) -> None:
    proxy = Proxy(rabbitmq.port)
    proxy.shut()
    try:
        bench = open_bench(sqlite_url, proxy.url(rabbitmq_url))
        with begun(bench):
            (relay,) = eventually(bench.outbox.store.relays, 20)
            assert (relay.live, relay.waits) == (True, True)
            assert len(bench.said("relay.waits")) == 1
            proxy.reopen()
            eventually(lambda: not bench.outbox.store.relays()[0].waits, 20)
            assert bench.outbox.store.relays()[0].loops == "sweep settle"
    finally:
        proxy.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # amqp leaves a socket open whose handshake is cut
def test_a_relay_whose_broker_is_gone_for_good_says_that_it_waits(
    open_bench: OpenBench, rabbitmq: RabbitMQ, rabbitmq_url: str, sqlite_url: str
) -> None:
    """Only once it does not count as one that settles any more: the broker may have thought that it holds reports."""
    proxy = Proxy(rabbitmq.port)
    quick = {"outbox_heartbeat": 0.5, "outbox_worker_ttl": 2, "outbox_run_lease": 3, "outbox_queue_lease": 6}
    try:
        bench = open_bench(sqlite_url, proxy.url(rabbitmq_url), **quick)
        with begun(bench):
            eventually(lambda: [one for one in bench.outbox.store.relays() if not one.waits], 20)
            before = bench.outbox.store.relays()[0]
            proxy.shut()
            eventually(lambda: bench.outbox.store.relays()[0].waits, 30)
            after = bench.outbox.store.relays()[0]
            assert after.last_seen_at - before.last_seen_at >= timedelta(seconds=after.live_for)
            proxy.reopen()
            eventually(lambda: bench.outbox.store.relays()[0].loops == "sweep settle", 20)
    finally:
        proxy.close()
        gc.collect()


def test_a_relay_that_is_told_to_stop_while_it_waits_leaves_the_register(
    open_bench: OpenBench, sqlite_url: str
) -> None:
    bench = open_bench(sqlite_url, "amqp://127.0.0.1:9//")
    with begun(bench):
        eventually(bench.outbox.store.relays, 20)
    assert bench.outbox.store.relays() == []


def test_a_loop_that_hangs_is_not_alive(bench: Bench) -> None:
    pulse = Pulse()
    server = HealthServer(0, pulse, Tally(), bench.outbox.store, host="127.0.0.1")
    server.start()
    try:
        pulse.beat("sweep", within=-1.0)
        assert get(server.port, "/livez") == (503, "the loop sweep does not come round\n")
    finally:
        server.close()


def test_metrics_without_their_extra_say_what_to_install(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, _, body = Metrics(bench.outbox.store, Tally()).page()
    assert status == 501
    assert b"outbox-relay[metrics]" in body


def test_an_unknown_half_is_refused(bench: Bench) -> None:
    with pytest.raises(SettingsError, match="sweep"):
        Relay(bench.outbox, only="everything")
