"""``relay``: a process that runs until it is told to stop, and says why where it does not start."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import clean_environment
from tests.support.processes import free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Shop


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


@pytest.mark.parametrize("only", [(), ("--only", "sweep"), ("--only", "settle")])
def test_a_relay_runs_until_sigterm_and_is_seen_by_status_and_check(shop: Shop, only: tuple[str, ...]) -> None:
    shop.ok("migrate")
    with running(shop, "outbox", "relay", *only, until="started on") as process:
        (relay,) = eventually(lambda: shop.ok("status", "--json").json["relays"], within=20)
        assert relay["live"] is True
        assert relay["loops"] == (only[1] if only else "sweep settle")
        assert "1 live" in shop.ok("check").out
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert shop.ok("status", "--json").json["relays"] == []


def test_health_is_served_where_a_port_is_given(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    port = free_port()
    with running(light_shop, "outbox", "relay", "--health-port", str(port), until="started on"):
        eventually(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/livez").status == 200, within=10)


def test_a_health_port_that_is_taken_is_told(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    with socket.create_server(("0.0.0.0", free_port())) as taken:
        port = taken.getsockname()[1]
        result = light_shop.outbox("relay", "--health-port", str(port))
    assert result.code == 1
    assert str(port) in result.err


@pytest.mark.parametrize("arguments", [("--only", "both"), ("--health-port", "0"), ("--loglevel", "LOUD")])
def test_options_outside_their_range_are_misuse(light_shop: Shop, arguments: tuple[str, ...]) -> None:
    assert light_shop.outbox("relay", *arguments).code == 2


def test_logs_go_to_stderr_or_to_a_file(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    written = light_shop.folder / "relay.log"
    with running(light_shop, "outbox", "relay", "--logfile", str(written), until="") as process:
        eventually(lambda: written.exists() and "started on" in written.read_text(), within=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert (light_shop.folder / "outbox.out").read_text() == ""
