"""``relay``: a process that runs until it is told to stop, and says why where it does not start."""

from __future__ import annotations

import re
import signal
import socket
import urllib.request
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.cli.conftest import running
from tests.support.processes import free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.cli.conftest import Shop


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


def test_shards_that_make_no_sense_are_refused(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    result = light_shop.outbox("relay", "--shards", "64/64")
    assert result.code == 1
    assert "outbox_shards = '64/64' is refused: write 'all', or first-last/total counted from 0" in result.err


def test_a_relay_claims_its_shards_alone(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    staged = light_shop.stage(*["shop.charge"] * 4)
    with (
        running(light_shop, "outbox", "relay", "--shards", "1/2", until="started on"),
        light_shop.outbox_here() as here,
    ):
        store = here[0].store
        statuses = lambda: {row.id: row.status.value for row in store.ls()}  # noqa: E731
        eventually(lambda: "claimed" in statuses().values(), within=20)
        assert {row_id % 2: status for row_id, status in statuses().items()} == {0: "pending", 1: "claimed"}
    assert len(staged) == 4


def test_a_relay_ends_at_once_where_the_database_refuses_it(big_shop: Shop) -> None:
    """Waiting would not help."""
    url = sa.make_url(big_shop.database)
    for wrong, says in ((url.set(database="nosuch"), "nosuch"), (url.set(username="nobody"), "nobody")):
        big_shop.configure(outbox_database_url=wrong.render_as_string(hide_password=False))
        result = big_shop.outbox("relay")
        assert result.code == 1
        assert f'"{says}" does not exist' in result.err.splitlines()[-1]


def test_a_relay_that_waits_for_its_broker_is_seen(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    light_shop.stage("charge")
    light_shop.configure(broker="amqp://127.0.0.1:9//")
    with running(light_shop, "outbox", "relay", until="it waits, and tries again"):
        (relay,) = eventually(lambda: light_shop.ok("status", "--json").json["relays"], within=20)
        assert relay["loops"] == "waits for its broker"
        told = light_shop.ok("status")
        assert re.search(r"relays +1 live +\(\S+ waits for its broker\)", told.out)
        assert "no relay reaches the broker" in told.err
        assert "waiting for the broker" in light_shop.outbox("check").out
    assert light_shop.ok("status", "--json").json["relays"] == []


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
