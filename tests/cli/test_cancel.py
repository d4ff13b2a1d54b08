"""Cancelling rows that a worker has: their tasks are revoked, and ended where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from outbox_relay.cli.revoke import recipients
from outbox_relay.core.processes import WorkerInfo
from outbox_relay.core.row import Cancelled
from tests.cli.conftest import running
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Shop

TASKS = """

import pathlib, time

@app.task(name="shop.wait")
def wait():
    pathlib.Path("started").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    pathlib.Path("ended").touch()


@app.task(name="shop.mark", bind=True)
def mark(self):
    with open("marked", "a") as file:
        file.write(self.request.id + "\\n")


@app.task(name="shop.break")
def break_():
    raise ValueError("5% broken")
"""
ONE_AT_A_TIME = ("--concurrency", "1", "--prefetch-multiplier", "1", "--loglevel", "INFO")


@pytest.fixture
def waiting_shop(big_shop: Shop) -> Iterator[Shop]:
    """A shop whose tasks can be made to wait, with its relay."""
    big_shop.configure(outbox_heartbeat=0.5, outbox_worker_ttl=3, outbox_run_lease=3)
    shop_file: Path = big_shop.folder / "shop.py"
    shop_file.write_text(shop_file.read_text() + TASKS)
    big_shop.ok("migrate")
    with running(big_shop, "outbox", "relay", until="started on"):
        yield big_shop


def test_a_reserved_task_is_revoked_and_a_running_one_ended_only_when_asked(waiting_shop: Shop) -> None:
    shop = waiting_shop
    with running(shop, "worker", "--concurrency", "1", "--loglevel", "INFO", until="ready."):
        (waits,) = shop.stage("shop.wait")
        eventually((shop.folder / "started").exists, within=30)
        (marks,) = shop.stage("shop.mark")
        eventually(lambda: held(shop, waits.row_id) and held(shop, marks.row_id), within=30)

        assert "cancelled 1 row" in shop.ok("cancel", marks.task_id, "--yes").out
        assert "cancelled 1 row" in shop.ok("cancel", waits.task_id, "--yes", "--terminate").out
        (last,) = shop.stage("shop.mark")
        eventually(lambda: show(shop, last.row_id)["status"] == "done", within=30)
        log = (shop.folder / "worker.out").read_text()
        assert f"Discarding revoked task: shop.mark[{marks.task_id}]" in log
        assert not (shop.folder / "ended").exists()
        assert marked(shop) == [last.task_id]
        said = {one.row_id: show(shop, one.row_id) for one in (waits, marks)}
        assert {one["status"] for one in said.values()} == {"cancelled"}
        assert said[waits.row_id]["error"] == "cancelled by an operator; its worker says: terminated"
        assert said[marks.row_id]["error"] == "cancelled by an operator; its worker says: revoked"


def test_a_running_task_that_is_not_ended_says_on_its_row_that_it_ran(waiting_shop: Shop) -> None:
    shop = waiting_shop
    with running(shop, "worker", *ONE_AT_A_TIME, until="ready."):
        (waits,) = shop.stage("shop.wait")
        eventually(lambda: held(shop, waits.row_id), within=30)
        shop.ok("cancel", waits.task_id, "--yes")
        (shop.folder / "go").touch()
        eventually(lambda: "; it ran all the same" in show(shop, waits.row_id)["error"], within=30)
        assert show(shop, waits.row_id)["status"] == "cancelled"


def test_a_workflow_of_thousands_that_is_queued_is_revoked_a_hundred_at_a_time(waiting_shop: Shop) -> None:
    shop, many = waiting_shop, 1_000
    with running(shop, "worker", *ONE_AT_A_TIME, until="ready."):
        (waits,) = shop.stage("shop.wait")
        eventually(lambda: held(shop, waits.row_id), within=30)
        with shop.outbox_here() as (outbox, engine):
            with engine.begin() as connection:
                marks = [outbox.app.signature("shop.mark") for _ in range(many)]
                outbox.stage_many(connection, marks, workflow_id="w")
            eventually(lambda: queued(outbox) == many, within=30)
        assert f"cancelled {many:,} rows" in shop.ok("cancel", "--workflow", "w", "--yes").out
        (last,) = shop.stage("shop.mark")
        (shop.folder / "go").touch()
        eventually(lambda: show(shop, last.row_id)["status"] == "done", within=60)
        log = (shop.folder / "worker.out").read_text()
        assert log.count("flagged as revoked") == many / 100
    assert marked(shop) == [last.task_id]
    assert len(shop.ok("ls", "--status", "cancelled", "--limit", "5000", "--json").json) == many


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_workers_of_other_pools_are_not_told_and_what_they_run_is_recorded(waiting_shop: Shop, pool: str) -> None:
    shop = waiting_shop
    with running(shop, "worker", "--pool", pool, *ONE_AT_A_TIME, until="ready."):
        (waits,) = shop.stage("shop.wait")
        eventually(lambda: held(shop, waits.row_id), within=30)
        marks, breaks = shop.stage("shop.mark", "shop.break")
        eventually(lambda: all(show(shop, one.row_id)["published_at"] for one in (marks, breaks)), within=30)
        result = shop.ok("cancel", waits.task_id, marks.task_id, breaks.task_id, "--yes", "--terminate")
        assert "cancelled 3 rows" in result.out
        assert "3 of them may run all the same" in result.err
        (shop.folder / "go").touch()
        ends = {
            waits: "cancelled by an operator; it ran all the same",
            marks: "cancelled by an operator; it ran all the same",
            breaks: "cancelled by an operator; it ran all the same and failed: ValueError: 5% broken",
        }
        for one, error in ends.items():
            eventually(lambda: show(shop, one.row_id)["error"] == error, within=30)  # noqa: B023
            assert show(shop, one.row_id)["status"] == "cancelled"
        assert "revoked" not in (shop.folder / "worker.out").read_text()
    assert marked(shop) == [marks.task_id]


def test_only_prefork_workers_that_hold_a_row_or_serve_its_queue_are_told() -> None:
    fork, thread, other, dead = (
        worker("fork@a", "prefork", "celery"),
        worker("thread@a", "threads", "celery"),
        worker("other@a", "prefork", "mail"),
        worker("dead@a", "prefork", "celery", live=False),
    )
    rows = [
        cancelled("held", fork.instance),
        cancelled("in a thread", thread.instance),
        cancelled("queued", None, "celery"),
        cancelled("with a dead one", dead.instance, "celery"),
        cancelled("being published", None, None),
        cancelled("nowhere", None, "gone"),
    ]
    assert recipients(rows, [fork, thread, other, dead]) == {
        ("fork@a",): ["held", "queued", "with a dead one"],
        (): ["in a thread", "nowhere"],
        ("fork@a", "other@a"): ["being published"],
    }


def worker(hostname: str, pool: str, *queues: str, live: bool = True) -> WorkerInfo:
    fields: dict[str, Any] = {"node": None, "namespaces": None, "held": 0, "started_at": None, "last_seen_at": None}
    return WorkerInfo(instance=uuid4(), hostname=hostname, pool=pool, queues=queues, live=live, **fields)


def cancelled(task_id: str, held_by: UUID | None, queue: str | None = "celery") -> Cancelled:
    return Cancelled(
        id=1, task_id=task_id, published=True, worker=None if held_by is None else str(held_by), queue=queue
    )


def queued(outbox: Any) -> int:
    """How many rows are published and not in a worker's hands."""
    return sum(row.published_to is not None and row.worker is None for row in outbox.store.ls(limit=10_000))


def marked(shop: Shop) -> list[str]:
    return (shop.folder / "marked").read_text().splitlines()


def held(shop: Shop, row_id: int) -> bool:
    return show(shop, row_id)["worker"] is not None


def show(shop: Shop, row_id: int) -> dict[str, Any]:
    document: dict[str, Any] = shop.ok("show", str(row_id), "--json").json
    return document
