"""What is sent inside a capture is staged, and nothing else is."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from celery import Celery, chain, chord, group
from celery.result import AsyncResult, GroupResult
from kombu.exceptions import OperationalError
from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session

from outbox_relay import StagingError
from tests.staging.shop import BoomError, Order, Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def live_shop(sqlite_url: str) -> Iterator[Shop]:
    """A shop whose broker answers: what is not captured is in its queue."""
    yield from opened(sqlite_url, broker="memory://", task_default_queue=uuid4().hex)


def sent(shop: Shop) -> int:
    with shop.app.connection_for_read() as connection, connection.channel() as channel:
        return int(channel._size(shop.app.conf.task_default_queue))


def test_every_way_to_send_is_captured(shop: Shop) -> None:
    charge, anything = shop.charge, shop.anything
    with shop.maker() as session, session.begin(), shop.outbox.capture(session, namespace="acme"):
        results = [
            charge.delay(1),
            charge.apply_async((2,), countdown=5),
            shop.app.send_task("by.name", (3,)),
            charge.s(4).delay(),
            charge.s(5)(1) and charge.s(5).apply_async(),
            chain(charge.s(6), charge.s(7)).delay(),
        ]
        members = group(charge.s(8), charge.s(9)).delay()
        chunks = charge.chunks([(1, 2), (3, 4)], 1).apply_async()
    assert all(isinstance(one, AsyncResult) for one in results)
    assert isinstance(members, GroupResult)
    rows = shop.rows()
    assert {row["namespace"] for row in rows} == {"acme"}
    ids = [row["task_id"] for row in rows]
    assert ids[:5] == [one.id for one in results[:5]]
    assert ids[5] == results[5].parent.id
    assert ids[6:8] == [one.id for one in members.results]
    assert ids[8:] == [one.id for one in chunks.results]
    assert anything.name not in {row["task"] for row in rows}


def test_the_header_of_a_chord_is_captured(sqlite_url: str) -> None:
    for shop in opened(sqlite_url, result_backend="cache+memory://"):
        with shop.maker() as session, session.begin(), shop.outbox.capture(session):
            chord([shop.charge.si(1), shop.charge.si(2)])(shop.anything.s())
        assert [row["task"] for row in shop.rows() if row["task"] == "shop.charge"] == ["shop.charge"] * 2


def test_rolled_back_calls_are_not_there(shop: Shop) -> None:
    with suppress(BoomError), shop.maker() as session, session.begin(), shop.outbox.capture(session):
        shop.charge.delay(1)
        raise BoomError
    with shop.maker() as session, session.begin(), shop.outbox.capture(session):
        with suppress(BoomError), session.begin_nested():
            shop.charge.delay(2)
            raise BoomError
        kept = shop.charge.delay(3)
    assert shop.row()["task_id"] == kept.id


def test_outside_the_block_a_call_is_sent(live_shop: Shop) -> None:
    shop = live_shop
    shop.charge.delay(1)
    with shop.maker() as session, session.begin():
        with shop.outbox.capture(session):
            shop.charge.delay(2)
        shop.charge.delay(3)
    assert (sent(shop), len(shop.rows())) == (2, 1)


def test_the_innermost_capture_counts(shop: Shop) -> None:
    with shop.maker() as session, session.begin(), shop.outbox.capture(session, namespace="outer"):
        shop.charge.delay(1)
        with shop.outbox.capture(session, namespace="inner"):
            shop.charge.delay(2)
        shop.charge.delay(3)
    assert [row["namespace"] for row in shop.rows()] == ["outer", "inner", "outer"]


def test_stage_inside_a_capture_is_its_own(lite_shop: Shop) -> None:
    with lite_shop.maker() as session, session.begin(), lite_shop.outbox.capture(session, namespace="acme"):
        lite_shop.outbox.stage(session, lite_shop.charge.s(1), namespace="globex")
    assert lite_shop.row()["namespace"] == "globex"


def test_a_capture_under_a_workflow_counts_its_calls(lite_shop: Shop) -> None:
    for _ in range(2):
        with lite_shop.outbox.begin(lite_shop.maker, workflow_id="w", run_id="r"):
            lite_shop.charge.delay(1)
            lite_shop.charge.delay(2)
    assert [row["ordinal"] for row in lite_shop.rows()] == [0, 1]


def test_a_call_without_a_transaction_is_refused(pg_shop: Shop) -> None:
    engine = pg_shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    refusal = pytest.raises(StagingError, match="outside a transaction")
    with Session(engine) as session, pg_shop.outbox.capture(session), refusal:
        pg_shop.charge.delay(1)
    assert pg_shop.rows() == []


def test_the_other_apps_calls_are_their_own(live_shop: Shop) -> None:
    other = Celery("other", broker=f"memory://{uuid4().hex}", set_as_current=False)
    with live_shop.maker() as session, session.begin(), live_shop.outbox.capture(session):
        other.send_task("x")
    assert live_shop.rows() == []
    other.close()


def test_what_a_publish_with_the_apps_own_producer_sends_goes_out(live_shop: Shop) -> None:
    queue = live_shop.app.conf.task_default_queue
    with live_shop.outbox.begin(live_shop.maker), live_shop.app.producer_or_acquire() as producer:
        producer.publish({"no": "task"}, routing_key=queue, exchange="", serializer="json")
    assert (sent(live_shop), live_shop.rows()) == (1, [])


# -- broker and result backend ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["redis://127.0.0.1:1/0", "rpc://", "cache+memory://", None])
def test_neither_broker_nor_result_backend_is_touched(sqlite_url: str, backend: str | None) -> None:
    for shop in opened(sqlite_url, result_backend=backend):
        started = time.monotonic()
        with shop.maker() as session, session.begin():
            shop.outbox.stage(session, shop.charge.s(1))
            shop.outbox.stage_many(session, [shop.charge.s(1), shop.charge.s(2)])
            with shop.outbox.capture(session):
                shop.charge.delay(2)
                group(shop.charge.s(3), shop.charge.s(4)).delay()
                chain(shop.charge.s(5), shop.charge.s(6)).delay()
        assert time.monotonic() - started < 1
        assert len(shop.rows()) == 7


def test_with_every_producer_of_the_pool_in_use_a_call_is_captured(live_shop: Shop) -> None:
    live_shop.app.conf.broker_pool_limit = 1
    with live_shop.app.producer_pool.acquire(block=True), live_shop.outbox.begin(live_shop.maker):
        live_shop.charge.delay(1)
    assert len(live_shop.rows()) == 1


@pytest.fixture
def redis_shop(sqlite_url: str, redis_url: str) -> Iterator[Shop]:
    for shop in opened(sqlite_url, broker=redis_url, result_backend=redis_url):
        yield shop
        shop.app.backend.result_consumer.stop()
        shop.app.backend.client.close()


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's backend and the newest Redis client
@pytest.mark.parametrize("when", ["before", "after"])
def test_results_of_captured_calls_can_be_waited_for(redis_shop: Shop, when: str) -> None:
    shop = redis_shop
    with shop.outbox.begin(shop.maker):
        single = shop.charge.delay(1)
        members = group(shop.charge.s(2), shop.charge.s(3)).delay()

    def finish() -> None:
        for number, one in enumerate([single, *members.results]):
            shop.app.backend.mark_as_done(one.id, number)

    finishing = threading.Timer(0 if when == "before" else 0.3, finish)
    finishing.start()
    if when == "before":
        finishing.join()
    assert single.get(timeout=20) == 0
    assert members.get(timeout=20) == [1, 2]
    finishing.join()


# -- begin --------------------------------------------------------------------------------------------------------


def test_begin_is_a_transaction_with_a_capture(shop: Shop) -> None:
    with shop.outbox.begin(shop.maker, namespace="acme") as session:
        session.add(Order(name="a"))
        session.flush()
        shop.charge.delay(1)
    with suppress(BoomError), shop.outbox.begin(shop.maker) as session:
        session.add(Order(name="b"))
        shop.charge.delay(2)
        raise BoomError
    assert shop.row()["namespace"] == "acme"
    assert shop.orders() == {"a"}


def test_begin_captures_what_the_flush_at_commit_sends(shop: Shop) -> None:
    def on_insert(_: Any, __: Any, order: Order) -> None:
        shop.charge.delay(order.id)

    event.listen(Order, "after_insert", on_insert)
    try:
        with shop.outbox.begin(shop.maker) as session:
            session.add(Order(name="a"))
    finally:
        event.remove(Order, "after_insert", on_insert)
    assert len(shop.rows()) == 1


def test_begin_takes_an_engine_or_a_scoped_session(shop: Shop) -> None:
    with shop.outbox.begin(shop.engine) as connection:
        assert isinstance(connection, sa.Connection)
        shop.charge.delay(1)
    scoped = scoped_session(shop.maker)
    with shop.outbox.begin(scoped) as session:
        assert session is scoped()
        shop.charge.delay(2)
    scoped.remove()
    assert len(shop.rows()) == 2


def test_begin_makes_the_session_itself(lite_shop: Shop) -> None:
    with lite_shop.maker() as session:
        for given in (session, 5, None):
            with pytest.raises(StagingError, match=r"begin\(\)"), lite_shop.outbox.begin(given):
                pass


# -- contexts -----------------------------------------------------------------------------------------------------


def test_what_a_call_carries_into_other_threads(live_shop: Shop) -> None:
    """A plain thread is another context and sends; ``asyncio.to_thread`` takes the context along."""
    shop = live_shop
    with shop.engine.begin() as connection, shop.outbox.capture(connection):
        thread = threading.Thread(target=shop.charge.delay, args=(1,))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(shop.charge.delay, 2).result()
    assert (sent(shop), shop.rows()) == (2, [])


def test_child_tasks_belong_to_the_block(pg_shop: Shop) -> None:
    shop = pg_shop

    async def main() -> None:
        with shop.outbox.begin(shop.maker):

            async def child(number: int) -> None:
                shop.charge.delay(number)

            await asyncio.gather(child(1), child(2))
            await asyncio.to_thread(shop.charge.delay, 3)

    asyncio.run(main())
    assert len(shop.rows()) == 3


def test_a_child_that_outlives_the_block_is_told(lite_shop: Shop) -> None:
    shop = lite_shop

    async def main() -> None:
        over = asyncio.Event()

        async def child() -> None:
            await over.wait()
            shop.charge.delay(1)

        with shop.outbox.begin(shop.maker):
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        over.set()
        with pytest.raises(StagingError, match="after the end of the capture"):
            await task

    asyncio.run(main())
    assert shop.rows() == []


def test_a_capture_may_be_closed_in_another_context(lite_shop: Shop) -> None:
    """As a web framework does with a generator of its own."""
    shop = lite_shop

    async def main() -> None:
        async def dependency() -> Any:
            with shop.outbox.begin(shop.maker) as session:
                yield session

        generator = dependency()
        await generator.__anext__()
        shop.charge.delay(1)

        async def close() -> None:
            with pytest.raises(StopAsyncIteration):
                await generator.__anext__()

        await asyncio.create_task(close())

    asyncio.run(main())
    assert len(shop.rows()) == 1


def test_captures_closed_out_of_order_leave_the_right_one_open(live_shop: Shop) -> None:
    shop = live_shop
    with shop.maker() as session, session.begin():
        outer = shop.outbox.capture(session, namespace="outer")
        inner = shop.outbox.capture(session, namespace="inner")
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        shop.charge.delay(1)
        inner.__exit__(None, None, None)
        shop.charge.delay(2)
    assert [row["namespace"] for row in shop.rows()] == ["inner"]
    assert sent(shop) == 1


# -- a task's own retry -------------------------------------------------------------------------------------------


def test_the_retry_of_the_running_task_is_not_captured(live_shop: Shop) -> None:
    """It would be lost with the rollback that it causes."""
    shop = live_shop

    @shop.app.task(name="shop.stubborn", bind=True, shared=False)
    def stubborn(self: Any) -> None:
        with shop.maker() as session, session.begin(), shop.outbox.capture(session):
            shop.charge.delay(1)
            raise self.retry(countdown=1)

    from celery.app.trace import build_tracer

    task_id = str(uuid4())
    trace = build_tracer(stubborn.name, stubborn, app=shop.app)
    trace(task_id, (), {}, {"id": task_id, "task": stubborn.name, "retries": 0, "delivery_info": {}, "args": ()})
    assert shop.rows() == []
    assert sent(shop) == 1


def test_a_dead_broker_is_told_outside_the_block_only(lite_shop: Shop) -> None:
    shop = lite_shop
    with shop.maker() as session, session.begin(), shop.outbox.capture(session):
        shop.charge.delay(1)
    with pytest.raises(OperationalError):
        shop.charge.apply_async((2,), retry=False)
    assert len(shop.rows()) == 1
