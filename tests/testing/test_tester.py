"""What a shop's own tests can ask: what is staged, and its tasks run without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from celery import chain
from sqlalchemy.orm import Session

from outbox_relay import AlreadyDone
from outbox_relay.staging.once import RepeatedRun
from outbox_relay.testing import Tester
from tests.staging.shop import Order, Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    """Its broker is away: whatever reached for it would raise."""
    yield from opened(database_url)


@pytest.fixture
def session(shop: Shop) -> Iterator[Session]:
    with Session(shop.engine) as session:
        yield session


@pytest.fixture
def tester(shop: Shop, session: Session) -> Tester:
    return Tester(shop.outbox, session)


def test_an_open_transaction_tells_what_is_staged_in_it(shop: Shop, session: Session, tester: Tester) -> None:
    tester.assert_nothing_staged()
    staged = shop.outbox.stage(session, shop.charge.s(7, amount=3), namespace="acme")
    found = tester.assert_staged(shop.charge, args=(7,), kwargs={"amount": 3}, namespace="acme")
    assert (found.task_id, found.row_id, found.task) == (staged.task_id, staged.row_id, "shop.charge")
    session.rollback()
    tester.assert_nothing_staged()


def test_what_is_not_staged_is_told_with_what_is(shop: Shop, session: Session, tester: Tester) -> None:
    shop.outbox.stage(session, shop.charge.s(7))
    with pytest.raises(
        AssertionError, match=r"shop\.charge with args=\(8,\).*is not staged.*\n.*shop\.charge args=\(7,\)"
    ):
        tester.assert_staged(shop.charge, args=(8,))
    with pytest.raises(AssertionError, match="is not staged 2 times, but 1"):
        tester.assert_staged("shop.charge", times=2)
    with pytest.raises(AssertionError, match="1 tasks are staged"):
        tester.assert_nothing_staged(shop.charge)


def test_arguments_are_compared_as_the_worker_will_see_them(shop: Shop, session: Session, tester: Tester) -> None:
    shop.outbox.stage(session, shop.anything.s((1, 2), when=b"x"))
    tester.assert_staged(shop.anything, args=((1, 2),), kwargs={"when": b"x"})
    tester.assert_staged(shop.anything, args=[[1, 2]])


def test_drain_runs_what_is_staged_in_the_transaction_and_settles_it(
    shop: Shop, session: Session, tester: Tester
) -> None:
    shop.outbox.stage(session, shop.charge.s(7, amount=3))
    (ran,) = tester.drain()
    assert (ran.task, ran.outcome, ran.result) == ("shop.charge", "done", 10)
    assert [one.status for one in tester.staged(status=None)] == ["done"]
    session.rollback()
    assert shop.rows() == []


def test_a_task_that_raises_fails_its_row_and_the_test(shop: Shop, session: Session, tester: Tester) -> None:
    @shop.app.task(shared=False)
    def broken() -> None:
        raise KeyError("no such order")

    shop.outbox.stage(session, broken.s())
    with pytest.raises(KeyError, match="no such order"):
        tester.drain()
    assert [one.status for one in tester.staged(status=None)] == ["failed"]
    shop.outbox.stage(session, broken.s())
    (ran,) = tester.drain(raises=False)
    assert ran.outcome == "failed"
    assert isinstance(ran.error, KeyError)


def test_what_met_another_run_in_its_commit_runs_again(shop: Shop, session: Session, tester: Tester) -> None:
    @shop.app.task(shared=False)
    def meets() -> None:
        raise RepeatedRun("another run was committing")

    shop.outbox.stage(session, meets.s())
    (ran,) = tester.drain(raises=False)
    assert ran.outcome == "again"
    assert [one.status for one in tester.staged(status=None)] == ["pending"]


def test_a_retry_waits_for_its_time_unless_told_otherwise(shop: Shop, session: Session, tester: Tester) -> None:
    @shop.app.task(bind=True, shared=False, max_retries=2)
    def flaky(self: Any, seen: int) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=60, args=(seen + 1,))
        return seen

    shop.outbox.stage(session, flaky.s(1))
    assert [one.outcome for one in tester.drain()] == ["retry"]
    assert tester.drain() == []
    tester.assert_staged(flaky, args=(2,))
    assert [(one.outcome, one.result) for one in tester.drain(delayed=True)] == [("retry", None), ("done", 3)]


def test_what_tasks_send_and_stage_runs_too(shop: Shop, session: Session, tester: Tester) -> None:
    seen = []

    @shop.app.task(shared=False)
    def last(value: int) -> None:
        seen.append(value)

    @shop.app.task(shared=False)
    def first(value: int) -> int:
        shop.outbox.stage(session, last.s(100))
        last.delay(200)
        return value + 1

    shop.outbox.stage(session, chain(first.s(1), last.s()))
    ran = tester.drain()
    assert sorted(seen) == [2, 100, 200]
    assert [one.outcome for one in ran] == ["done"] * 4
    assert sum(one.row_id is None for one in ran) == 2


def test_a_delayed_row_waits_and_an_expired_one_is_cancelled(shop: Shop, session: Session, tester: Tester) -> None:
    shop.outbox.stage(session, shop.charge.s(1).set(countdown=60))
    shop.outbox.stage(session, shop.charge.s(2).set(expires=-5))
    assert [one.outcome for one in tester.drain()] == ["cancelled"]
    assert [one.outcome for one in tester.drain(delayed=True)] == ["done"]


def test_once_skips_the_second_run(shop: Shop, session: Session, tester: Tester) -> None:
    @shop.app.task(shared=False)
    def order(name: str) -> None:
        shop.outbox.once(session)
        session.add(Order(name=name))
        session.flush()

    staged = shop.outbox.stage(session, order.s("one"))
    assert [one.outcome for one in tester.drain()] == ["done"]
    row = shop.outbox.tables.row
    session.execute(sa.update(row).where(row.c.id == staged.row_id).values(status="pending"))
    (ran,) = tester.drain()
    assert ran.outcome == "done"
    assert isinstance(ran.error, AlreadyDone)


def test_a_task_that_nobody_knows_fails(shop: Shop, session: Session, tester: Tester) -> None:
    shop.outbox.stage(session, shop.app.signature("no.such.task"))
    with pytest.raises(LookupError, match=r"no task 'no\.such\.task' is registered"):
        tester.drain()


def test_a_psycopg_connection_is_looked_at_and_drained_too(postgres_url: str) -> None:
    for shop in opened(postgres_url):
        with psycopg.connect(
            sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(False)
        ) as connection:
            tester = Tester(shop.outbox, connection)
            shop.outbox.stage(connection, shop.charge.s(1, amount=2))
            tester.assert_staged(shop.charge, args=[1])
            assert [(one.outcome, one.result) for one in tester.drain()] == [("done", 3)]
            connection.rollback()
            assert tester.staged(status=None) == []


def test_what_plain_sql_inserted_is_seen_and_run_too(shop: Shop, session: Session, tester: Tester) -> None:
    insert = sa.text("INSERT INTO outbox_row (task, args, kwargs) VALUES (:task, :args, :kwargs)")
    session.execute(insert, {"task": "shop.charge", "args": "[7]", "kwargs": '{"amount": 3}'})
    session.execute(insert, {"task": "shop.charge", "args": "nonsense", "kwargs": None})
    tester.assert_staged(shop.charge, args=[7], kwargs={"amount": 3})
    good, bad = tester.drain(raises=False)
    assert (good.outcome, good.result) == ("done", 10)
    assert (bad.outcome, "are no JSON" in str(bad.error)) == ("failed", True)
    assert [one.status for one in tester.staged(status=None)] == ["done", "failed"]
