"""The same reports on every broker; none lost while a broker is away; and a worker without the outbox is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outbox_relay.core.settlement import Kind
from tests.support.waiting import eventually
from tests.worker.harness import QUEUE, Desk, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import RabbitMQ

EXPECTED = {
    "add": Kind.DONE,
    "fail": Kind.FAILED,
    "again": Kind.RETRY,
    "named_for_all": Kind.AGAIN,
    "ignore": Kind.DONE,
    "reject": Kind.FAILED,
    "not_there_yet": Kind.UNKNOWN,
    "die": Kind.LOST,
}


@pytest.mark.parametrize(("broker", "late"), [("redis_url", "0"), ("redis_url", "1"), ("embedded_url", "1")])
def test_ends_are_reported_on_other_brokers(
    request: pytest.FixtureRequest, tmp_path: Path, broker: str, late: str
) -> None:
    url = request.getfixturevalue(broker)
    with running(tmp_path, url, "-c", "2", SHOP_LATE=late) as (worker, desk):
        sent = {name: desk.send(name) for name in EXPECTED}
        sent["bad"] = desk.send("add", drop=("id",))
        desk.wait(*sent.values(), within=60)  # a lost child is noticed after ten seconds where there is no event loop
        eventually(lambda: (desk.read(), desk.beacons)[1])
        assert worker.stop() == 0
        desk.read()
        assert {name: [one.kind for one in desk.of(sent[name])] for name in EXPECTED} == {
            name: [kind] for name, kind in EXPECTED.items()
        }
        assert [one.kind for one in desk.of(sent["bad"])] == [Kind.FAILED]
        assert {beacon.pool for beacon in desk.beacons} == {"prefork"}


def test_reports_of_an_outage_arrive_after_it(rabbitmq: RabbitMQ, rabbitmq_url: str, tmp_path: Path) -> None:
    """Tasks end while the broker is away: their reports wait in memory, and come once each."""
    with running(tmp_path, rabbitmq_url, "-P", "threads", "-c", "4") as (worker, desk):
        naps = [desk.send("nap", 4, f"nap {number}") for number in range(4)]
        for number in range(4):
            worker.wait_note(f"nap {number} started")
        desk.close()
        rabbitmq.stop()
        for number in range(4):
            worker.wait_note(f"nap {number} ended")
        eventually(lambda: "settlements wait, the broker is away" in worker.text())
        rabbitmq.start()
        again = Desk(rabbitmq_url)
        assert [report.kind for report in again.wait(*naps, within=60)] == [Kind.DONE] * 4
        assert [len(again.of(nap)) for nap in naps] == [1] * 4
        assert worker.text().count("settlements wait, the broker is away") == 1
        eventually(lambda: "settlements flow again" in worker.text())
        again.close()


def test_worker_that_ends_while_the_broker_is_away_says_what_it_could_not_send(
    rabbitmq: RabbitMQ, rabbitmq_url: str, tmp_path: Path
) -> None:
    with running(tmp_path, rabbitmq_url, "-P", "threads", "-c", "1", SHOP_DRAIN="1") as (worker, desk):
        desk.send("nap", 2, "nap")
        worker.wait_note("nap started")
        desk.close()
        rabbitmq.stop()
        worker.wait_note("nap ended")
        eventually(lambda: "settlements wait" in worker.text())
        worker.stop()
        assert "dropped 1 settlement" in worker.text()
    rabbitmq.start()


def test_task_without_the_header_is_not_touched(rabbitmq_url: str, tmp_path: Path) -> None:
    with running(tmp_path, rabbitmq_url, "-c", "1") as (worker, desk):
        for task in ("add", "fail", "ignore"):
            desk.send(task, drop=("x-outbox",))
        desk.send("add", headers={"x-outbox": "2;of;another;version;outbox.settlements.shop"})
        desk.send("add", headers={"x-outbox": f"1;1;0;{'0' * 32};somebody.elses.queue"})
        desk.send("again", "countdown", drop=("x-outbox",), headers={"retries": 2})
        assert desk.wait(desk.send("add"))[0].kind is Kind.DONE
        worker.stop()
        desk.read()
        assert len(desk.reports) == 1
        assert desk.depth("celery") == 1  # the retry went to the broker, as it always did


def test_dormant_worker_has_nothing_of_the_outbox(rabbitmq_url: str, tmp_path: Path) -> None:
    with running(tmp_path, rabbitmq_url, "-P", "threads", "-c", "1", SHOP_ENABLED="0") as (worker, desk):
        sent = desk.send("look_at_yourself")
        worker.wait_note("threads: []")
        worker.wait_note("request: celery.worker.request")
        worker.stop()
        desk.read()
        assert desk.of(sent) == []
        assert desk.beacons == []
        assert desk.depth(QUEUE) == 0  # declared by the test, and empty
        assert "outbox" not in worker.text().replace("outbox_relay", "")
