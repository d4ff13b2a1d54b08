"""A task's own database effects happen once, however often the task is delivered."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import states
from celery.app.trace import build_tracer

from outbox_relay import AlreadyDone, StagingError
from outbox_relay.core.settlement import HEADER, Delivery
from tests.staging.shop import BoomError, Order, Shop

if TYPE_CHECKING:
    from collections.abc import Callable


def deliver(shop: Shop, body: Callable[[], None], *, row_id: int | None = 1, task_id: str = "t1") -> Any:
    """Run ``body`` as a worker runs a task, and return what came of it."""
    task = shop.app.task(name=f"shop.{uuid4().hex}", shared=False)(body)
    headers = {} if row_id is None else {HEADER: Delivery(row_id, 0, uuid4(), "q").header()}
    request = {"id": task_id, "task": task.name, "delivery_info": {}, "headers": headers, **headers}
    return build_tracer(task.name, task, app=shop.app)(task_id, (), {}, request)


@pytest.fixture
def order(shop: Shop) -> Callable[[], None]:
    def body() -> None:
        with shop.maker() as session, session.begin():
            shop.outbox.once(session)
            session.add(Order(name=uuid4().hex))

    return body


def test_a_second_run_is_told_that_it_is_done(shop: Shop, order: Callable[[], None]) -> None:
    assert deliver(shop, order).info is None
    second = deliver(shop, order)
    assert isinstance(second.info.retval, AlreadyDone)
    assert second.info.state == states.IGNORED  # the result of the first run stays, and no callback follows
    assert len(shop.orders()) == 1


def test_a_run_that_rolled_back_did_nothing(shop: Shop, order: Callable[[], None]) -> None:
    def fails() -> None:
        with shop.maker() as session, session.begin():
            shop.outbox.once(session)
            session.add(Order(name="x"))
            raise BoomError

    deliver(shop, fails)
    assert shop.orders() == set()
    assert deliver(shop, order).info is None
    assert len(shop.orders()) == 1


def test_rows_and_task_ids_are_told_apart(shop: Shop, order: Callable[[], None]) -> None:
    for row_id, task_id in ((1, "a"), (2, "a"), (1, "b")):
        deliver(shop, order, row_id=row_id, task_id=task_id)
    assert len(shop.orders()) == 3


def test_without_the_header_it_does_nothing(shop: Shop, order: Callable[[], None]) -> None:
    order()
    order()
    deliver(shop, order, row_id=None)
    deliver(shop, order, row_id=None)
    assert len(shop.orders()) == 4


def test_effects_that_a_rollback_would_not_undo_are_refused(pg_shop: Shop) -> None:
    engine = pg_shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    refused = []

    def body() -> None:
        with engine.connect() as connection, suppress(StagingError):
            pg_shop.outbox.once(connection)
            refused.append("not")

    deliver(pg_shop, body)
    assert refused == []
