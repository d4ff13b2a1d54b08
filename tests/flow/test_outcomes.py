"""The whole way of a row, on each stack, with a relay and a stock worker: every outcome, and where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outbox_relay.store.operator import RowFilter
from tests.flow.conftest import STACKS, urls
from tests.flow.stand import Shop
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.flow.stand import Launcher


@pytest.fixture(scope="module", params=STACKS)
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, launcher: Launcher
) -> Iterator[Shop]:
    """A shop that is open for all tests of this module, with a relay and a worker."""
    folder = tmp_path_factory.mktemp("shop")
    with (
        urls(request, request.param, folder) as (database, broker),
        Shop(launcher, folder, database, broker, outbox_heartbeat=1, outbox_worker_ttl=5) as shop,
    ):
        shop.relay(wait=False)
        shop.worker(wait=False)
        yield shop


def test_what_is_committed_runs_once_and_is_done(shop: Shop) -> None:
    staged = shop.stage("charge", 7)
    row = shop.becomes(staged, "done", within=40)
    assert shop.runs(staged) == [staged.task_id]
    assert (row.attempt, row.failures, row.rearms) == (0, 0, 0)


def test_what_is_rolled_back_never_runs(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        lost = shop.outbox.stage(connection, shop.task("charge"))
        connection.rollback()
    kept = shop.stage("charge")
    shop.becomes(kept, "done")
    assert shop.outbox.store.find(lost.task_id) == []
    assert shop.runs(lost) == []


def test_what_is_rolled_back_to_a_savepoint_never_runs(shop: Shop) -> None:
    with shop.transaction() as connection:
        savepoint = connection.begin_nested()
        lost = shop.outbox.stage(connection, shop.task("charge"))
        savepoint.rollback()
        with connection.begin_nested():
            kept = shop.outbox.stage(connection, shop.task("charge"))
    shop.becomes(kept, "done")
    assert shop.runs(lost) == []
    assert shop.runs(kept) == [kept.task_id]


def test_a_countdown_waits_in_the_database(shop: Shop) -> None:
    later = shop.stage("charge", options={"countdown": 2})
    now = shop.stage("charge")
    shop.becomes(now, "done")
    assert shop.status(later) == "pending"
    row = shop.becomes(later, "done")
    assert shop.runs(later) == [later.task_id]
    assert (row.settled_at - row.created_at).total_seconds() >= 2


def test_a_retry_goes_back_to_its_row_and_on_from_where_it_was(shop: Shop) -> None:
    staged = shop.stage("retry", 2)
    row = shop.becomes(staged, "done")
    assert len(shop.runs(staged)) == 3
    assert (row.attempt, row.retries, row.failures) == (2, 2, 0)


def test_an_exception_fails_the_row_and_is_not_run_again(shop: Shop) -> None:
    staged = shop.stage("fail")
    row = shop.becomes(staged, "failed")
    assert row.error.startswith("ValueError: the card was refused")
    assert shop.runs(staged) == [staged.task_id]


def test_a_dead_letter_that_is_redriven_runs_again(shop: Shop) -> None:
    staged = shop.stage("fail")
    shop.becomes(staged, "failed")
    assert shop.outbox.store.redrive(RowFilter(ids=(staged.row_id,))) == 1
    shop.becomes(staged, "done")
    assert len(shop.runs(staged)) == 2


def test_a_lost_child_is_told_and_the_task_runs_again_at_once(shop: Shop) -> None:
    staged = shop.stage("die")
    row = shop.becomes(staged, "done", within=40)
    assert len(shop.runs(staged)) == 2
    assert (row.attempt, row.failures, row.rearms) == (1, 1, 0)


def test_a_child_lost_on_the_last_attempt_ends_as_a_dead_letter(shop: Shop) -> None:
    staged = shop.stage("die", 5, max_attempts=1)
    row = shop.becomes(staged, "failed", within=40)
    assert "WorkerLostError" in row.error
    assert len(shop.runs(staged)) == 1


def test_an_unknown_task_waits_for_a_worker_that_knows_it_and_does_not_wait_for_ever(shop: Shop) -> None:
    staged = shop.stage("of_tomorrow", max_attempts=2)
    row = shop.becomes(staged, "failed")
    assert row.failures == 2
    assert "shop.of_tomorrow" in row.error


def test_a_cancelled_row_never_runs(shop: Shop) -> None:
    staged = shop.stage("charge", options={"countdown": 1})
    assert shop.outbox.store.cancel(RowFilter(ids=(staged.row_id,)))
    after = shop.stage("charge", options={"countdown": 1.2})
    shop.becomes(after, "done")
    assert shop.status(staged) == "cancelled"
    assert shop.runs(staged) == []


def test_a_row_that_expired_before_it_was_published_is_cancelled(shop: Shop) -> None:
    staged = shop.stage("charge", options={"countdown": 1.5, "expires": 0.5})
    row = shop.becomes(staged, "cancelled")
    assert "expires" in row.error
    assert shop.runs(staged) == []


def test_a_task_of_another_namespace_is_run_by_a_stock_worker(shop: Shop) -> None:
    staged = shop.stage("charge", namespace="acme")
    shop.becomes(staged, "done")
    assert shop.runs(staged) == [staged.task_id]


def test_a_row_that_settles_on_publish_is_done_when_the_broker_has_it(shop: Shop) -> None:
    staged = shop.stage("fail", settle_on="publish")
    shop.becomes(staged, "done")
    eventually(lambda: shop.runs(staged), 10)
    assert shop.status(staged) == "done"
