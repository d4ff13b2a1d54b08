"""Cancelling rows that a worker has: their tasks are revoked, and ended where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cli.test_relay import running
from tests.support.waiting import eventually

if TYPE_CHECKING:
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


@app.task(name="shop.mark")
def mark():
    pathlib.Path("marked").touch()
"""


def test_a_reserved_task_is_revoked_and_a_running_one_ended_only_when_asked(big_shop: Shop) -> None:
    big_shop.configure(outbox_heartbeat=0.5, outbox_worker_ttl=3, outbox_run_lease=3)
    shop_file: Path = big_shop.folder / "shop.py"
    shop_file.write_text(shop_file.read_text() + TASKS)
    big_shop.ok("migrate")
    (waits,) = big_shop.stage("shop.wait")
    with (
        running(big_shop, "worker", "--concurrency", "1", "--loglevel", "INFO", until="ready."),
        running(big_shop, "outbox", "relay", until="started on"),
    ):
        eventually((big_shop.folder / "started").exists, within=30)
        (marks,) = big_shop.stage("shop.mark")
        eventually(lambda: held(big_shop, waits.row_id) and held(big_shop, marks.row_id), within=30)

        assert "cancelled 1 row" in big_shop.ok("cancel", marks.task_id, "--yes").out
        assert "cancelled 1 row" in big_shop.ok("cancel", waits.task_id, "--yes", "--terminate").out
        (last,) = big_shop.stage("shop.mark")
        eventually(lambda: status(big_shop, last.row_id) == "done", within=30)
        log = (big_shop.folder / "worker.out").read_text()
        assert f"Discarding revoked task: shop.mark[{marks.task_id}]" in log
        assert f"Task shop.mark[{marks.task_id}] succeeded" not in log
        assert not (big_shop.folder / "ended").exists()
    assert [status(big_shop, one.row_id) for one in (waits, marks)] == ["cancelled", "cancelled"]


def held(shop: Shop, row_id: int) -> bool:
    return shop.ok("show", str(row_id), "--json").json["worker"] is not None


def status(shop: Shop, row_id: int) -> str:
    return str(shop.ok("show", str(row_id), "--json").json["status"])
