"""A relay that is stopped (SIGSTOP) for longer than every lease, and goes on: others have done its work, once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import eventually, never

if TYPE_CHECKING:
    from tests.flow.conftest import OpenShop

ROWS = 20
STACKS = ("postgresql-rabbitmq", "postgresql-redis")


@pytest.mark.parametrize("stack", STACKS)
def test_reports_in_the_hands_of_a_frozen_relay_are_waited_for(open_shop: OpenShop, stack: str) -> None:
    """They go back to the queue before it counts as gone, and nobody re-arms what they end.

    On Redis the message that it had just asked for is out of reach, as in a partition: what that one ends may
    run again, once.
    """
    shop = open_shop(stack)
    shop.worker(wait=False)
    frozen, other = shop.relay(wait=False), shop.relay(wait=False)
    busy = [shop.stage("wait"), shop.stage("wait")]
    eventually(lambda: all(shop.row(one).started_at for one in busy), 40)
    staged = shop.stage_many(ROWS)
    eventually(lambda: all(shop.row(one).published_at for one in staged), 20)
    frozen.send(signal.SIGSTOP)
    shop.open_gate()
    shop.all_done(ROWS + 2, within=40)
    never(lambda: other.ended, 4)
    frozen.send(signal.SIGCONT)
    for one in [shop.stage("charge", n) for n in range(5)]:
        shop.becomes(one, "done", within=20)
    never(lambda: frozen.ended or other.ended, 2)
    runs = [len(shop.runs(one)) for one in (*busy, *staged)]
    if stack.endswith("rabbitmq"):
        assert {shop.row(one).rearms for one in (*busy, *staged)} == {0}
        assert set(runs) == {1}
    assert max(runs) <= 2
    assert other.end() == 0
    shop.becomes(shop.stage("charge"), "done", within=20)
    assert frozen.end() == 0


@pytest.mark.parametrize("stack", STACKS)
def test_what_a_frozen_relay_had_claimed_is_published_by_another_and_by_it_no_more(
    open_shop: OpenShop, stack: str
) -> None:
    """Its publish lease is over by its own clock, too, when it goes on."""
    shop = open_shop(stack)
    shop.worker(wait=False)
    frozen = shop.relay(dies_at="sweep.claimed:STOP", wait=False)
    staged = shop.stage_many(ROWS)
    eventually(lambda: frozen.says("claimed"), 30)
    shop.relay(wait=False)
    shop.all_done(ROWS, within=40)
    frozen.send(signal.SIGCONT)
    eventually(lambda: frozen.says("the publish lease is half over"), 20)
    never(lambda: frozen.ended or len(shop.runs()) != ROWS, 2)
    assert {shop.row(one).rearms for one in staged} == {1}
