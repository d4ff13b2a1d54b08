"""A relay as a whole, in a thread: its start, its health, its end."""

from __future__ import annotations

import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from outbox_relay.errors import SettingsError
from outbox_relay.relay.health import HealthServer, Metrics, Pulse, Tally
from outbox_relay.relay.service import Relay
from tests.support.processes import free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.relay.conftest import Bench, OpenBench
    from tests.support.servers import Postgres


@contextmanager
def running(bench: Bench, **options: Any) -> Iterator[Relay]:
    relay, codes = Relay(bench.outbox, **options), []
    thread = threading.Thread(target=lambda: codes.append(relay.run()))
    thread.start()
    try:
        eventually(lambda: bench.said("relay.started"), 20)
        yield relay
    finally:
        relay.stop()
        thread.join(30)
    assert codes == [0]


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
