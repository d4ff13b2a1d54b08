"""A broker that loses a queue, and an operator who says so: what was lost runs, and what was not runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kombu import Connection

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.flow.conftest import OpenShop
    from tests.flow.stand import Shop

STACKS = ("postgresql-rabbitmq", "postgresql-redis")


def lose_queue(shop: Shop) -> int:
    """Take everything out of the shop's queue, as a wiped broker would; return how many messages that was."""
    with Connection(shop.conf["broker_url"]) as connection:
        return int(connection.default_channel.queue_purge(shop.conf["task_default_queue"]) or 0)


def rearm_queue(shop: Shop) -> str:
    """Let the command line do it, and return what it says."""
    program = shop.start("rearm", "outbox", "rearm", "--queue", shop.conf["task_default_queue"], "--yes")
    assert program.wait(30) == 0, program.tail()
    return program.tail()


@pytest.mark.parametrize("stack", STACKS)
def test_what_a_lost_queue_held_is_published_again_at_an_operators_word(open_shop: OpenShop, stack: str) -> None:
    """Long before the leases end; what a live worker has in its hands is left to it."""
    shop = open_shop(stack, outbox_queue_lease=600, worker_prefetch_multiplier=1, task_acks_late=True)
    shop.relay(wait=False)
    shop.worker("-c", "1", wait=False)
    running = shop.stage("wait")
    eventually(lambda: shop.row(running).started_at, 40)
    lost = shop.stage_many(20)
    eventually(lambda: all(shop.row(one).published_at for one in lost), 30)
    assert shop.waiting() == 20
    assert lose_queue(shop) == 20
    (explanation,) = shop.outbox.inspect.explain(running.task_id)
    assert explanation.why.startswith("worker w1@test has been running it for ")
    (explanation,) = shop.outbox.inspect.explain(lost[0].task_id)
    assert "nothing waits there any more" in explanation.why
    assert "of the workers that report, w1@test serves that queue" in explanation.why
    assert f"'outbox rearm --queue {shop.conf['task_default_queue']}'" in str(explanation.moves)

    said = rearm_queue(shop)
    assert "re-armed 20 rows of the queue" in said
    shop.open_gate()
    shop.all_done(21, within=40)
    assert len(shop.runs()) == 21
    assert shop.row(running).rearms == 0
    assert all((row.rearms, row.attempt, row.failures) == (1, 0, 0) for row in (shop.row(one) for one in lost))


def test_a_queue_that_was_not_lost_is_worked_off_twice_and_each_row_ends_once(open_shop: OpenShop) -> None:
    """The operator was wrong, and the messages are there: that is a second run of the same task id, and no more."""
    shop = open_shop(outbox_queue_lease=600)
    shop.relay(wait=False)
    staged = shop.stage_many(5)
    eventually(lambda: all(shop.row(one).published_at for one in staged), 40)
    assert "re-armed 5 rows of the queue" in rearm_queue(shop)
    eventually(lambda: shop.waiting() == 10, 30)
    shop.worker(wait=False)
    shop.all_done(5, within=40)
    eventually(lambda: len(shop.runs()) == 10, 20)
    assert {shop.runs().count(one.task_id) for one in staged} == {2}
    shop.all_done(5)
