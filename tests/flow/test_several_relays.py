"""Several relays side by side: nothing is lost, nothing is done twice, and each may go at any time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.flow.conftest import OpenShop
    from tests.flow.stand import Shop


def test_two_relays_and_several_stagers_give_each_row_one_run(any_shop: Shop) -> None:
    """100 rows, 100 runs, and no error on SQLite either (B62, B65, B66)."""
    shop = any_shop
    shop.worker(wait=False)
    relays = [shop.relay(), shop.relay()]

    def stage() -> None:
        for _ in range(5):
            shop.stage_many(5)

    stagers = [threading.Thread(target=stage) for _ in range(4)]
    for stager in stagers:
        stager.start()
    for stager in stagers:
        stager.join()
    shop.all_done(100, within=40)
    assert len(shop.runs()) == 100
    assert len(set(shop.runs())) == 100
    for relay in relays:
        assert "database is locked" not in relay.log.read_text()
        assert relay.end() == 0


def test_sweep_and_settle_may_be_processes_of_their_own(open_shop: OpenShop) -> None:
    shop = open_shop()
    shop.worker(wait=False)
    sweep, settle = shop.relay("--only", "sweep"), shop.relay("--only", "settle")
    shop.stage_many(20)
    shop.all_done(20, within=30)
    assert "settled" not in sweep.log.read_text()
    assert "claimed" not in settle.log.read_text()
    eventually(lambda: {one.loops for one in shop.outbox.store.relays()} == {"sweep", "settle"}, 10)


def test_a_row_of_a_dead_worker_is_rearmed_once_although_several_relays_and_beats_ask(open_shop: OpenShop) -> None:
    """The attempt counts once, whoever asks how often (B90)."""
    shop = open_shop()
    victim = shop.worker(wait=False)
    relays = [shop.relay(wait=False) for _ in range(3)]
    beats = [shop.start("beat", "beat", "-s", str(shop.folder / f"beat-{n}.db")) for n in range(2)]
    staged = shop.stage("kill")
    victim.wait(30)
    eventually(lambda: shop.status(staged) == "pending" or shop.row(staged).rearms, 30)
    shop.worker(wait=False)
    row = shop.becomes(staged, "done", within=40)
    assert row.rearms <= 2  # no worker was there for a while
    assert (row.attempt, row.failures) == (0, 0)
    assert sum(one.count("re-armed 1 row ") for one in relays) == row.rearms
    assert not any(one.ended for one in beats)
