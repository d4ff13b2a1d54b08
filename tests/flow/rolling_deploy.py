"""Old and new side by side, as in a rolling deploy: the oldest versions that are allowed, and the newest.

``bin/check-lowest`` runs it and names the Python of the old environment in ``OUTBOX_TEST_OLD_PYTHON``; it is not among
the tests that are collected by themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.flow.stand import Launcher
from tests.support.waiting import eventually, never

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flow.conftest import OpenShop
    from tests.flow.stand import Shop

OLD = os.environ.get("OUTBOX_TEST_OLD_PYTHON", "")
STACKS = ("postgresql-rabbitmq", "postgresql-redis")


@pytest.fixture(scope="module")
def old() -> Iterator[Launcher]:
    """Starts processes of the old environment."""
    launcher = Launcher(python=OLD)
    yield launcher
    launcher.close()


def version_of(python: str) -> str:
    code = "import celery; print(celery.__version__)"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_there_are_two_versions() -> None:
    assert version_of(OLD).startswith("5.4.")
    assert version_of(OLD) != version_of(sys.executable)


def every_end(shop: Shop) -> None:
    """Rows of each kind end as they always do."""
    running = shop.stage("wait")
    ends = {
        "charge": (shop.stage("charge", "x" * 5_000), "done"),
        "later": (shop.stage("charge", options={"options": {"countdown": 1}}), "done"),
        "retry": (shop.stage("retry", 2), "done"),
        "fail": (shop.stage("fail"), "failed"),
        "lost": (shop.stage("die"), "done"),
        "other": (shop.stage("not_there", max_attempts=2), "failed"),
    }
    for staged, status in ends.values():
        shop.becomes(staged, status, within=60)
    assert len(shop.runs(ends["retry"][0])) == 3
    assert "the card was refused" in shop.row(ends["fail"][0]).error
    assert shop.row(ends["lost"][0]).failures == 1
    eventually(lambda: shop.row(running).started_at, 20)
    never(lambda: shop.row(running).rearms, 4)  # for longer than its lease
    shop.open_gate()
    shop.becomes(running, "done", within=30)
    assert len(shop.runs(running)) == 1


@pytest.mark.parametrize("stack", STACKS)
def test_an_old_worker_and_a_new_relay(open_shop: OpenShop, old: Launcher, stack: str) -> None:
    shop = open_shop(stack)
    shop.worker("-c", "3", launcher=old, wait=False)
    shop.relay(wait=False)
    every_end(shop)


@pytest.mark.parametrize("stack", STACKS)
def test_a_new_worker_and_an_old_relay(open_shop: OpenShop, old: Launcher, stack: str) -> None:
    shop = open_shop(stack)
    shop.worker("-c", "3", wait=False)
    shop.relay(launcher=old, wait=False)
    every_end(shop)


def test_old_and_new_of_everything_at_once(open_shop: OpenShop, old: Launcher) -> None:
    shop = open_shop()
    workers = [shop.worker(wait=False), shop.worker(launcher=old, wait=False)]
    relays = [shop.relay(wait=False), shop.relay(launcher=old, wait=False)]
    for one in workers:
        eventually(lambda: one.says("ready."), 40)  # noqa: B023
    shop.stage_many(200)
    shop.all_done(200, within=60)
    assert len(shop.runs()) == 200
    assert relays[0].end() == 0  # the new ones go: a deploy that is taken back
    assert workers[0].end() == 0
    shop.stage_many(50)
    shop.all_done(250, within=60)
    assert len(shop.runs()) == 250


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_rows_that_celery_batches_runs_together_are_done(open_shop: OpenShop, old: Launcher, pool: str) -> None:
    """It gives Celery's pool no request: each is done when it is acknowledged, after its batch, and none runs twice."""
    shop = open_shop()
    shop.worker(pool=pool, launcher=old, wait=False)
    shop.relay(wait=False)
    staged = [shop.stage("batch", n) for n in range(7)]
    shop.all_done(7, within=60)
    never(lambda: shop.counts() != {"done": 7}, 4)
    assert sorted(shop.runs()) == sorted(one.task_id for one in staged)
    assert "acknowledged by the task's own strategy" in shop.row(staged[0]).error
