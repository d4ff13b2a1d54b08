"""A worker consumes the queues of the namespaces that it serves, from its start or as a relay tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery

from outbox_relay.core.settlement import Kind
from tests.support.waiting import eventually
from tests.worker.harness import Desk, running

if TYPE_CHECKING:
    from pathlib import Path

    from outbox_relay.core.beacon import Beacon


def beacon_that(desk: Desk, *, serves: str) -> Beacon:
    def found() -> Beacon | None:
        desk.read()
        return next((one for one in desk.beacons if serves in one.serves), None)

    beacon = eventually(found, 20, what=f"a beacon of a worker that serves {serves}")
    assert beacon is not None
    return beacon


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_worker_of_all_namespaces_follows_the_relay(rabbitmq_url: str, tmp_path: Path, pool: str) -> None:
    control = Celery("control", broker=rabbitmq_url).control
    with running(tmp_path, rabbitmq_url, "-P", pool, "-c", "1", "-n", "w@host") as (_, desk):
        assert beacon_that(desk, serves="default").namespaces is None
        control.broadcast("outbox_subscribe", arguments={"namespaces": ["acme", "globex"]}, destination=["w@host"])
        assert set(beacon_that(desk, serves="globex").queues) == {"celery", "acme:celery", "globex:celery"}
        sent = [desk.send("add", queue=queue) for queue in ("celery", "acme:celery", "globex:celery")]
        assert [report.kind for report in desk.wait(*sent)] == [Kind.DONE] * 3


def test_worker_of_some_namespaces_takes_nothing_else(rabbitmq_url: str, tmp_path: Path) -> None:
    control = Celery("control", broker=rabbitmq_url).control
    options = ("-c", "1", "-n", "w@host", "-Q", "mail,print", "--outbox-namespaces", "acme", "--outbox-node", "box-7")
    with running(tmp_path, rabbitmq_url, *options) as (_, desk):
        beacon = beacon_that(desk, serves="acme")
        assert beacon.node == "box-7"
        assert beacon.namespaces == ("acme",)
        assert set(beacon.queues) == {"acme:mail", "acme:print", "acme:mail@box-7", "acme:print@box-7"}
        (answer,) = control.broadcast(
            "outbox_subscribe", arguments={"namespaces": ["globex"]}, destination=["w@host"], reply=True, timeout=10
        )
        assert "ok" in answer["w@host"]
        sent = desk.send("add", queue="acme:print@box-7")
        desk.wait(sent)
        desk.read()
        assert not any("globex" in name for beacon in desk.beacons for name in (*beacon.serves, *beacon.queues))


def test_queue_that_the_broker_refuses_is_left_out(rabbitmq_url: str, tmp_path: Path) -> None:
    control = Celery("control", broker=rabbitmq_url).control
    with running(tmp_path, rabbitmq_url, "-c", "1", "-n", "w@host") as (worker, desk):
        with desk.connection.channel() as channel:
            channel.queue_declare("acme:celery", durable=True, auto_delete=False, arguments={"x-max-priority": 3})
        control.broadcast("outbox_subscribe", arguments={"namespaces": ["acme", "globex"]}, destination=["w@host"])
        assert "acme" not in beacon_that(desk, serves="globex").serves
        assert "acme:celery cannot be consumed" in worker.text()
        assert desk.wait(desk.send("add"))[0].kind is Kind.DONE


@pytest.mark.parametrize("option", [("--outbox-namespaces", "acme,gl:obex"), ("--outbox-node", "box 7")])
def test_name_outside_the_rule_is_refused_at_start(rabbitmq_url: str, tmp_path: Path, option: tuple[str, str]) -> None:
    with pytest.raises(RuntimeError, match=f"outbox: {option[0]}"), running(tmp_path, rabbitmq_url, *option):
        pass
