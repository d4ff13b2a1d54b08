"""A clock that is wrong by ten minutes, on a relay or on a worker: all times are the database's (B28)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libfaketime
import pytest

from tests.flow.stand import Launcher
from tests.support.waiting import eventually, never

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flow.conftest import OpenShop

LIBRARY = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
QUICKER = {"outbox_run_lease": 2, "outbox_queue_lease": 4}


@pytest.fixture(scope="module", params=["+10m", "-10m"])
def wrong(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """Starts processes whose clock goes right, and is wrong. Their monotonic clock is the machine's."""
    launcher = Launcher(LD_PRELOAD=str(LIBRARY), FAKETIME=request.param, FAKETIME_DONT_FAKE_MONOTONIC="1")
    launcher.shift = request.param  # type: ignore[attr-defined]
    code, env = "import time; print(time.time())", {**os.environ, **launcher.env}
    told = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout
    assert 590 < abs(float(told) - time.time()) < 610, "the library that shifts clocks does not work here"
    yield launcher
    launcher.close()


def test_a_relay_with_a_wrong_clock_publishes_nothing_early_and_steals_no_claim(
    open_shop: OpenShop, wrong: Launcher
) -> None:
    shop = open_shop(**QUICKER)
    relay, right = shop.relay(launcher=wrong, wait=False), shop.relay(wait=False)
    shop.worker(wait=False)
    running = shop.stage("wait")
    eventually(lambda: shop.row(running).started_at, 40)
    expires = shop.stage("charge", options={"options": {"expires": 300}})
    later = shop.stage("charge", options={"options": {"countdown": 5}})
    shop.becomes(expires, "done", within=20)  # by the database's clock it has five minutes left
    due = shop.row(later).visible_after
    right.end()
    eventually(lambda: shop.outbox.store.now() >= due or shop.runs(later), 20)
    assert shop.outbox.store.now() >= due
    shop.becomes(later, "done", within=20)
    shop.becomes(shop.stage("retry", 1), "done", within=20)
    assert not relay.ended
    row = shop.row(running)
    assert (row.rearms, str(row.status.value), len(shop.runs(running))) == (0, "claimed", 1)
    shop.open_gate()
    shop.becomes(running, "done", within=20)


def test_a_worker_with_a_wrong_clock_runs_everything_that_does_not_expire(open_shop: OpenShop, wrong: Any) -> None:
    """``expires`` is Celery's, compared by the worker with its own clock: the one exception."""
    shop = open_shop(**QUICKER)
    shop.relay(wait=False)
    worker = shop.worker(launcher=wrong, wait=False)
    running = shop.stage("wait")
    eventually(lambda: shop.row(running).started_at, 40)
    shop.becomes(shop.stage("charge", options={"options": {"countdown": 1}}), "done", within=20)
    again = shop.stage("retry", 1, 2)
    asked = eventually(lambda: shop.row(again).visible_after if shop.row(again).attempt else None, 20)
    assert abs((asked - shop.outbox.store.now()).total_seconds()) < 5
    shop.becomes(again, "done", within=20)
    expires = shop.stage("charge", options={"options": {"expires": 300}})
    if wrong.shift == "+10m":
        assert shop.becomes(expires, "cancelled", within=20).error == "expired"
    else:
        shop.becomes(expires, "done", within=20)
    never(lambda: shop.row(running).rearms, 2)
    assert len(shop.runs(running)) == 1
    assert not worker.ended
    shop.open_gate()
    shop.becomes(running, "done", within=20)
