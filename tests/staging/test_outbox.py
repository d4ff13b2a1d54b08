"""The object that a shop holds: lazy, one an app, fit for threads and forks."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from celery import Celery

from outbox_relay import Outbox, outbox_of
from outbox_relay.store.wake import channel_name
from tests.staging.shop import Shop, opened
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_making_one_reads_and_opens_nothing() -> None:
    app = Celery("lazy", set_as_current=False)
    outbox = Outbox(app)
    assert not app.configured
    assert app.outbox is outbox
    assert outbox_of(app) is outbox


def test_outbox_of_makes_what_is_not_there() -> None:
    app = Celery("new", set_as_current=False)
    assert outbox_of(app) is app.outbox


def test_every_thread_is_given_the_same_parts(shop: Shop) -> None:
    found: list[Any] = []
    barrier = threading.Barrier(8)

    def look() -> None:
        barrier.wait(10)
        found.append((shop.outbox.settings, shop.outbox.tables, shop.outbox.store, shop.outbox.queues))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(map(id, parts)) for parts in found}) == 1


def test_a_forked_child_opens_a_store_of_its_own(shop: Shop) -> None:
    shop.outbox.store.now()
    own = shop.outbox.store
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if shop.outbox.store is not own and shop.outbox.store.now():
                engine = sa.create_engine(shop.url)
                with engine.begin() as connection:
                    shop.outbox.stage(connection, shop.charge.s(1))
                status = 0
        finally:
            os._exit(status)
    _, code = os.waitpid(child, 0)
    assert code == 0
    assert shop.outbox.store is own
    assert own.now()
    assert len(shop.rows()) == 1


def test_a_closed_outbox_can_be_used_again(shop: Shop) -> None:
    shop.outbox.store.now()
    shop.outbox.close()
    assert shop.outbox.store.now()


def test_inspect_answers(shop: Shop) -> None:
    with shop.outbox.begin(shop.maker, namespace="acme"):
        staged = shop.charge.delay(1)
    assert shop.outbox.inspect.counts()["pending"] == 1
    assert [row.task_id for row in shop.outbox.inspect.find(staged.id)] == [staged.id]
    assert [row.namespace for row in shop.outbox.inspect.ls(namespace="acme")] == ["acme"]
    assert shop.outbox.inspect.relays() == shop.outbox.inspect.workers() == []
    (explanation,) = shop.outbox.inspect.explain(staged.id)
    assert "no relay lives that would claim it" in explanation.sentence
    assert shop.outbox.inspect.explain("nobody") == []


# -- the wake -----------------------------------------------------------------------------------------------------


class Listener:
    def __init__(self, shop: Shop) -> None:
        url = sa.make_url(shop.url)
        self._connection = psycopg.connect(
            host=url.host, port=url.port, user=url.username, password=url.password, dbname=url.database, autocommit=True
        )
        self._connection.execute(f"LISTEN {channel_name(shop.outbox.tables)}")

    def heard(self) -> int:
        return sum(1 for _ in self._connection.notifies(timeout=0.3))

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def listener(pg_shop: Shop) -> Iterator[Listener]:
    listener = Listener(pg_shop)
    yield listener
    listener.close()


def test_a_commit_wakes_the_relay_and_a_rollback_does_not(pg_shop: Shop, listener: Listener) -> None:
    with pg_shop.maker() as session:
        pg_shop.outbox.stage(session, pg_shop.charge.s(1))
        session.rollback()
    assert listener.heard() == 0
    with pg_shop.outbox.begin(pg_shop.maker):
        pg_shop.charge.delay(1)
    assert listener.heard() == 1


def test_wakes_are_throttled_for_a_process(pg_shop: Shop, listener: Listener) -> None:
    """Each notification makes the commits of the whole database wait in line."""
    started = time.monotonic()
    for number in range(60):
        with pg_shop.maker() as session, session.begin():
            pg_shop.outbox.stage(session, pg_shop.charge.s(number))
    windows = (time.monotonic() - started) / 0.05
    heard = listener.heard()
    assert 1 <= heard <= windows + 1


def test_the_wake_can_be_switched_off(postgres_url: str) -> None:
    for shop in opened(postgres_url, outbox_wake="off"):
        listener = Listener(shop)
        with shop.outbox.begin(shop.maker):
            shop.charge.delay(1)
        assert listener.heard() == 0
        listener.close()


def test_a_large_transaction_fits_the_wake(pg_shop: Shop, listener: Listener) -> None:
    """A notification has no room for what it is about, so it says nothing."""
    with pg_shop.outbox.begin(pg_shop.maker):
        for number in range(300):
            pg_shop.anything.delay("x" * 20_000, number)
    eventually(lambda: listener.heard() >= 1)
    assert len(pg_shop.rows()) == 300
