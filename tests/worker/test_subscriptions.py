"""A worker consumes the queues of the namespaces that it serves, from its start or as a relay tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery import Celery

from outbox_relay.core.settlement import Kind
from outbox_relay.errors import SettingsError
from outbox_relay.events import Events
from outbox_relay.publish.queues import Queues
from outbox_relay.settings import Settings
from outbox_relay.worker.subscriptions import Subscriptions
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.worker.harness import Desk, Worker, running

if TYPE_CHECKING:
    from pathlib import Path

    from outbox_relay.core.beacon import Beacon
    from tests.support.servers import RabbitMQ

CELERY = tuple(int(part) for part in celery.__version__.split(".")[:2])
knows_quorum_queues = pytest.mark.skipif(CELERY < (5, 5), reason="quorum queues came with Celery 5.5")
CLASSIC_NOW_QUORUM_LATER = ("--", "task_default_queue_type=quorum", 'task_queues=(json){"celery": {}}')


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
        names = ["acme", *(f"n{number}" for number in range(60)), "globex"]  # more than are taken up at once
        control.broadcast("outbox_subscribe", arguments={"namespaces": names}, destination=["w@host"])
        assert "acme" not in beacon_that(desk, serves="globex").serves
        assert "acme:celery cannot be consumed" in worker.text()
        assert desk.wait(desk.send("add"))[0].kind is Kind.DONE


@pytest.mark.parametrize("option", [("--outbox-namespaces", "acme,gl:obex"), ("--outbox-node", "box 7")])
def test_name_outside_the_rule_is_refused_at_start(rabbitmq_url: str, tmp_path: Path, option: tuple[str, str]) -> None:
    with pytest.raises(RuntimeError, match=f"outbox: {option[0]}"), running(tmp_path, rabbitmq_url, *option):
        pass


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_relay_asked_for_outlives_the_connection(rabbitmq: RabbitMQ, tmp_path: Path, pool: str) -> None:
    url = rabbitmq.url(rabbitmq.create_vhost())
    proxy, desk = Proxy(rabbitmq.port), Desk(url)
    worker = Worker(tmp_path, proxy.url(url), "-P", pool, "-c", "1", "-n", "w@host", "--outbox-node", "box-7")
    try:
        worker.wait_ready()
        control = Celery("control", broker=url).control
        control.broadcast("outbox_subscribe", arguments={"namespaces": ["acme"]}, destination=["w@host"])
        queues = {"celery", "celery@box-7", "acme:celery", "acme:celery@box-7"}
        assert set(beacon_that(desk, serves="acme").queues) == queues
        proxy.cut()
        eventually(lambda: "Connected to" in worker.text().partition("onnection to broker lost")[2], 40)
        sent = [desk.send("add", queue=queue) for queue in sorted(queues)]
        assert [report.kind for report in desk.wait(*sent)] == [Kind.DONE] * 4
        desk.beacons.clear()
        assert set(beacon_that(desk, serves="acme").queues) == queues
    finally:
        worker.stop()
        desk.close()
        proxy.close()


@knows_quorum_queues
def test_quorum_queues_can_be_added_to_a_worker_that_started_without_any(rabbitmq_url: str, tmp_path: Path) -> None:
    control = Celery("control", broker=rabbitmq_url).control
    with running(tmp_path, rabbitmq_url, "-c", "1", "-n", "w@host", *CLASSIC_NOW_QUORUM_LATER) as (worker, desk):
        assert set(beacon_that(desk, serves="default").queues) == {"celery"}
        control.broadcast("outbox_subscribe", arguments={"namespaces": ["acme"]}, destination=["w@host"])
        assert set(beacon_that(desk, serves="acme").queues) == {"celery", "acme:celery"}
        with desk.connection.channel() as channel:  # the broker refuses another type for a queue that is there
            channel.queue_declare("acme:celery", auto_delete=False, durable=True, arguments={"x-queue-type": "quorum"})
        sent = [desk.send("add", queue=queue) for queue in ("celery", "acme:celery")]
        assert [report.kind for report in desk.wait(*sent)] == [Kind.DONE] * 2
        assert "cannot be" not in worker.text()


@knows_quorum_queues
def test_worker_that_may_not_look_for_quorum_queues_says_why_it_leaves_them(rabbitmq_url: str, tmp_path: Path) -> None:
    control = Celery("control", broker=rabbitmq_url).control
    options = (*CLASSIC_NOW_QUORUM_LATER, "worker_detect_quorum_queues=false")
    with running(tmp_path, rabbitmq_url, "-c", "1", "-n", "w@host", *options) as (worker, desk):
        beacon_that(desk, serves="default")
        control.broadcast("outbox_subscribe", arguments={"namespaces": ["acme"]}, destination=["w@host"])
        eventually(lambda: "acme:celery is a quorum queue" in worker.text(), 20)
        assert desk.wait(desk.send("add"))[0].kind is Kind.DONE


def subscriptions(events: Events, namespaces: str, **conf: Any) -> Subscriptions:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update({"outbox_enabled": True, **conf})
    settings = Settings.from_conf(app.conf, main=app.main, needs_database=False)
    separate = settings.namespace_queues
    return Subscriptions(app, Queues(app, settings), events, node="box-7", namespaces=namespaces, separate=separate)


def test_worker_that_consumes_very_many_queues_is_warned_about_once() -> None:
    events, told = Events(), []
    events.subscribe(lambda event: told.append(str(event)))
    some = subscriptions(events, ",".join(f"n{number}" for number in range(150)))
    some.warn_of_many()
    assert told == []
    many = subscriptions(events, ",".join(f"n{number}" for number in range(151)))
    many.warn_of_many()
    many.warn_of_many()
    assert len(told) == 1
    assert "this worker consumes 302 queues" in told[0]


def test_namespaces_that_share_their_queues_cannot_be_told_apart_by_a_worker() -> None:
    with pytest.raises(SettingsError, match="all namespaces share"):
        subscriptions(Events(), "acme", outbox_namespace_queues=False)
