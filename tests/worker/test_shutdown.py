"""A worker that goes, or whose children go, says what became of each row in its hands."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import celery
import pytest
from celery import Celery

from outbox_relay.core.beacon import HeldState
from outbox_relay.core.settlement import Kind
from tests.support.waiting import eventually
from tests.worker.harness import Desk, running

if TYPE_CHECKING:
    from pathlib import Path

    from outbox_relay.core.beacon import Held
    from tests.support.servers import RabbitMQ
    from tests.worker.harness import Sent


THREADS = ("threads", "gevent")
CELERY = tuple(int(part) for part in celery.__version__.split(".")[:2])


def kinds(desk: Desk, sent: Sent) -> list[Kind]:
    return [report.kind for report in desk.of(sent)]


@pytest.mark.parametrize(("pool", "late"), [("prefork", "0"), ("prefork", "1"), ("threads", "1"), ("gevent", "1")])
def test_warm_shutdown_reports_the_running_and_releases_the_rest(
    rabbitmq_url: str, tmp_path: Path, pool: str, late: str
) -> None:
    with running(tmp_path, rabbitmq_url, "-P", pool, "-c", "1", SHOP_LATE=late) as (worker, desk):
        first = desk.send("nap", 1.5, "first")
        worker.wait_note("first started")
        rest = [desk.send("add") for _ in range(2)]
        eventually(lambda: worker.text().count("received") == 3)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait_end() == 0
        desk.read()
        assert kinds(desk, first) == [Kind.DONE]
        ends = [kinds(desk, one) for one in rest]  # a thread may still take what waits in its pool
        assert all(end == [Kind.RELEASED] or (end == [Kind.DONE] and pool in THREADS) for end in ends)
        assert eventually(lambda: desk.depth("celery") == ends.count([Kind.RELEASED]))
        assert [one.leaving for one in desk.beacons[-2:]] == [False, True]
        assert desk.beacons[-1].held == ()


def test_solo_worker_leaves_what_it_has_not_seen_to_the_broker(rabbitmq_url: str, tmp_path: Path) -> None:
    with running(tmp_path, rabbitmq_url, "-P", "solo") as (worker, desk):
        first = desk.send("nap", 1.5, "first")
        worker.wait_note("first started")
        rest = [desk.send("add") for _ in range(20)]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait_end() == 0
        desk.read()
        assert kinds(desk, first) == [Kind.DONE]
        done = [one for one in rest if kinds(desk, one) == [Kind.DONE]]
        assert [kinds(desk, one) for one in rest if one not in done] == [[]] * (20 - len(done))
        assert eventually(lambda: desk.depth("celery") == 20 - len(done))


@pytest.mark.parametrize(("late", "kind"), [("0", Kind.LOST), ("1", Kind.REQUEUED)])
def test_cold_shutdown_tells_lost_from_requeued(rabbitmq_url: str, tmp_path: Path, late: str, kind: Kind) -> None:
    with running(tmp_path, rabbitmq_url, "-c", "1", SHOP_LATE=late) as (worker, desk):
        first = desk.send("nap", 60, "first")
        worker.wait_note("first started")
        second = desk.send("add")
        eventually(lambda: worker.text().count("received") == 2)
        worker.send_signal(signal.SIGQUIT)
        worker.wait_end()
        desk.read()
        assert kinds(desk, first) == [kind if CELERY >= (5, 5) else Kind.LOST]  # which acknowledged it, as a failure
        assert kinds(desk, second) == [Kind.RELEASED]
        assert eventually(lambda: desk.depth("celery") == (1 if late == "0" or CELERY < (5, 5) else 2))


@pytest.mark.skipif(CELERY < (5, 5), reason="soft shutdown came with Celery 5.5")
@pytest.mark.parametrize(("late", "kind"), [("0", Kind.LOST), ("1", Kind.REQUEUED)])
def test_soft_shutdown_tells_who_made_it_from_who_did_not(
    rabbitmq_url: str, tmp_path: Path, late: str, kind: Kind
) -> None:
    with running(tmp_path, rabbitmq_url, "-c", "2", SHOP_LATE=late, SHOP_SOFT="3") as (worker, desk):
        short, long = desk.send("nap", 1.5, "short"), desk.send("nap", 60, "long")
        worker.wait_note("short started")
        worker.wait_note("long started")
        reserved = desk.send("add")
        eventually(lambda: worker.text().count("received") == 3)
        worker.send_signal(signal.SIGQUIT)
        worker.wait_end()
        desk.read()
        assert [kinds(desk, one) for one in (short, long, reserved)] == [[Kind.DONE], [kind], [Kind.RELEASED]]
        assert eventually(lambda: desk.depth("celery") == (1 if late == "0" else 2))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_waits_for_its_eta_or_its_rate_is_held_and_released(rabbitmq_url: str, tmp_path: Path, pool: str) -> None:
    later = {"eta": (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()}
    with running(tmp_path, rabbitmq_url, "-P", pool, "-c", "2") as (worker, desk):
        first = desk.send("slowest_lane")
        desk.wait(first)
        lanes = ("slowest_lane", "add", "slowest_lane"), ({}, later, later)
        waits = [desk.send(task, headers=headers) for task, headers in zip(*lanes, strict=True)]
        eventually(lambda: worker.text().count("received") == 4)

        def held() -> bool:
            desk.read()
            named = {one.token for beacon in desk.beacons[-1:] for one in beacon.held}
            return named >= {one.delivery.token for one in waits}

        eventually(held, 20, what="a beacon that names all three")
        assert {one.state for one in desk.beacons[-1].held} == {HeldState.RESERVED}
        assert worker.stop() == 0
        desk.read()
        assert [kinds(desk, one) for one in waits] == [[Kind.RELEASED]] * 3
        assert eventually(lambda: desk.depth("celery") == 3)


def test_child_lost_with_requeue_is_requeued_and_ends_on_its_next_run(rabbitmq_url: str, tmp_path: Path) -> None:
    with running(tmp_path, rabbitmq_url, "-c", "1", SHOP_LATE="1", SHOP_REJECT_LOST="1") as (_, desk):
        sent = desk.send("die_once")
        desk.wait(sent)
        assert kinds(desk, sent) == [Kind.REQUEUED, Kind.DONE]


def test_connection_that_is_cut_gives_a_late_task_back(rabbitmq: RabbitMQ, rabbitmq_url: str, tmp_path: Path) -> None:
    with running(tmp_path, rabbitmq_url, "-c", "1", SHOP_LATE="1") as (worker, desk):
        sent = desk.send("nap", 3, "held")
        worker.wait_note("held started")
        waiting = desk.send("add")
        eventually(lambda: worker.text().count("received") == 2)
        desk.close()
        rabbitmq.ctl("close_all_connections", "--vhost", rabbitmq_url.rpartition("/")[2], "a test")
        later = Desk(rabbitmq_url)
        later.wait(sent, waiting, within=60)
        assert kinds(later, sent) == ([Kind.REQUEUED, Kind.DONE] if CELERY >= (5, 5) else [Kind.DONE])
        assert kinds(later, waiting) == [Kind.DONE]
        later.close()


@pytest.mark.parametrize(
    ("pool", "late"), [("prefork", "0"), ("prefork", "1"), ("threads", "1"), ("solo", "1"), ("gevent", "1")]
)
def test_memory_error_is_no_poison(rabbitmq_url: str, tmp_path: Path, pool: str, late: str) -> None:
    """It ends a worker of processes, as without an outbox, but not the next one."""
    with running(tmp_path, rabbitmq_url, "-P", pool, "-c", "1", SHOP_LATE=late) as (worker, desk):
        sent = desk.send("out_of_memory")
        if pool == "prefork":
            assert worker.wait_end() == 1
        desk.wait(sent)
        assert kinds(desk, sent) == [Kind.FAILED]
        assert eventually(lambda: desk.depth("celery") == 0)


def test_killed_worker_says_nothing_and_the_next_one_does(rabbitmq_url: str, tmp_path: Path) -> None:
    with running(tmp_path, rabbitmq_url, "-c", "1", SHOP_LATE="1") as (worker, desk):
        sent = desk.send("nap", 2, "held")
        worker.wait_note("held started")
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.wait_end()
    (tmp_path / "ran").unlink()
    with running(tmp_path, rabbitmq_url, "-c", "1", SHOP_LATE="1") as (worker, desk):
        worker.wait_note("held started")
        desk.wait(sent)
        assert kinds(desk, sent) == [Kind.DONE]


def test_revoked_and_terminated_tasks_are_cancelled(rabbitmq_url: str, tmp_path: Path) -> None:
    control = Celery("control", broker=rabbitmq_url).control
    with running(tmp_path, rabbitmq_url, "-c", "1") as (worker, desk):
        first = desk.send("nap", 60, "first")
        worker.wait_note("first started")
        second = desk.send("add")
        eventually(lambda: worker.text().count("received") == 2)
        control.revoke([second.task_id], reply=True, timeout=5)
        control.revoke([first.task_id], terminate=True, signal="SIGKILL")
        terminated, revoked = desk.wait(first, second)
        assert (terminated.kind, terminated.error) == (Kind.CANCELLED, "terminated")
        assert (revoked.kind, revoked.error) == (Kind.CANCELLED, "revoked")
        assert len(desk.of(first)) == len(desk.of(second)) == 1


def test_terminate_in_a_pool_that_cannot_cancels_what_had_not_started(rabbitmq_url: str, tmp_path: Path) -> None:
    control = Celery("control", broker=rabbitmq_url).control
    with running(tmp_path, rabbitmq_url, "-P", "threads", "-c", "1") as (worker, desk):
        first = desk.send("nap", 2, "first")
        worker.wait_note("first started")
        second = desk.send("add")
        eventually(lambda: worker.text().count("received") == 2)
        control.revoke([second.task_id], terminate=True, reply=True, timeout=5)
        ran, revoked = desk.wait(first, second)
        assert ran.kind is Kind.DONE
        assert revoked.kind is Kind.CANCELLED


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_beacons_name_what_is_held_until_the_last_task_has_ended(rabbitmq_url: str, tmp_path: Path, pool: str) -> None:
    with running(tmp_path, rabbitmq_url, "-P", pool, "-c", "1", "-n", "w@host", SHOP_HEARTBEAT="0.5") as (worker, desk):
        sent = desk.send("nap", 2.5, "held")
        worker.wait_note("held started")
        worker.send_signal(signal.SIGTERM)
        worker.wait_end()
        desk.read()
        named = [held for beacon in desk.beacons for held in beacon.held if held.token == sent.delivery.token]
        running_for = [held.age for held in named if held.state is HeldState.RUNNING_EARLY]
        assert len(running_for) >= 3
        assert max(running_for) > 1.5
        assert {beacon.hostname for beacon in desk.beacons} == {"w@host"}
        assert {beacon.pool for beacon in desk.beacons} == {pool}
        assert kinds(desk, sent) == [Kind.DONE]


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_early_acknowledged_task_is_told_within_a_second(rabbitmq_url: str, tmp_path: Path, pool: str) -> None:
    with running(tmp_path, rabbitmq_url, "-P", pool, "-c", "1", SHOP_HEARTBEAT="15") as (_, desk):
        sent = desk.send("nap", 1.5, "held")

        def told() -> Held | None:
            desk.read()
            news = [held for beacon in desk.beacons if beacon.partial for held in beacon.held]
            return next((held for held in news if held.token == sent.delivery.token), None)

        held = eventually(told, 20)
        assert held is not None
        assert held.state is HeldState.RUNNING_EARLY
        assert held.age < 1.0
        desk.wait(sent)
        assert sum(beacon.partial for beacon in desk.beacons) == 1
