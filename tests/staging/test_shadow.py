"""A rehearsal: what is sent goes out as ever, and rows show what the outbox would have done."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from celery.signals import before_task_publish
from django.db import connection, transaction
from kombu import Connection
from kombu.exceptions import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from outbox_relay import Staged, StagingError
from tests.staging.django_stand import configured, database
from tests.staging.shop import DEAD_BROKER, BoomError, Order, Shop, open_shop

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shop(database_url: str, embedded_url: str) -> Iterator[Shop]:
    shop = open_shop(database_url, broker=embedded_url, outbox_shadow=True, task_default_queue="shop")
    yield shop
    shop.engine.dispose()
    shop.outbox.close()
    shop.app.close()


def received(shop: Shop) -> list[Any]:
    found = []
    with Connection(shop.app.conf.broker_url) as connection:
        shop.app.amqp.queues["shop"](connection.default_channel).declare()
        while (message := connection.default_channel.basic_get("shop", no_ack=True)) is not None:
            found.append(message)
    return found


def told(shop: Shop) -> list[str]:
    said: list[str] = []
    shop.outbox.events.subscribe(lambda event: said.append(str(event)) if event.name == "shadow.refused" else None)
    return said


def test_what_a_capture_hears_is_sent_and_staged_and_never_published(shop: Shop) -> None:
    heard = []
    before_task_publish.connect(lambda headers, **_: heard.append(headers["id"]), weak=False, dispatch_uid="shadow")
    try:
        with shop.maker.begin() as session, shop.outbox.capture(session, namespace="acme"):
            result = shop.charge.apply_async((1,), {"amount": 2}, priority=3)
    finally:
        before_task_publish.disconnect(dispatch_uid="shadow")
    (message,) = received(shop)
    row = shop.row()
    assert (message.headers["id"], row["task_id"]) == (result.id, result.id)
    assert "x-outbox" not in message.headers
    assert json.loads(message.body)[:2] == [[1], {"amount": 2}]
    assert bytes(row["body"]) == bytes(message.body)
    assert message.properties["priority"] == 3
    assert (row["status"], row["error"]) == ("cancelled", "a shadow: its task was sent directly")
    assert heard == [result.id], "the shop's own signal handlers hear of it once"
    lease = shop.outbox.settings.run_lease
    assert shop.outbox.store.claim(limit=10, claimed_by=uuid4(), lease=lease) == []


def test_a_rollback_takes_the_row_and_not_the_message(shop: Shop) -> None:
    with shop.maker() as session:
        with shop.outbox.capture(session):
            shop.charge.delay(1)
        session.rollback()
    assert len(received(shop)) == 1
    assert shop.rows() == []


def test_what_staging_refuses_is_told_and_sent(shop: Shop) -> None:
    said = told(shop)
    connection = shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connection, shop.outbox.capture(connection):
        shop.charge.delay(1)
    assert len(received(shop)) == 1
    (refusal,) = said
    assert refusal.startswith("the outbox would have refused shop.charge, which was sent directly: staging outside a")


def test_a_statement_that_fails_does_not_spoil_the_shops_transaction(shop: Shop) -> None:
    said = told(shop)
    shop.outbox.tables.row.drop(shop.engine)
    with shop.maker.begin() as session, shop.outbox.capture(session):
        session.add(Order(name="tea"))
        shop.charge.delay(1)
    assert shop.orders() == {"tea"}
    assert len(received(shop)) == 1
    assert len(said) == 1


def test_stage_and_stage_many_send_too(shop: Shop) -> None:
    with shop.maker.begin() as session:
        staged = shop.outbox.stage(session, shop.charge.s(1))
        shop.outbox.stage_many(session, (shop.charge.s(n) for n in range(3)))
        with pytest.raises(StagingError):
            shop.outbox.stage(session, shop.charge.s(2), namespace="not a name")
    messages = received(shop)
    assert len(messages) == 4
    assert staged.task_id in {message.headers["id"] for message in messages}
    assert {row["status"] for row in shop.rows()} == {"cancelled"}
    assert len(shop.rows()) == 4


def test_a_direct_send_that_fails_raises_as_ever(database_url: str) -> None:
    shop = open_shop(database_url, broker=DEAD_BROKER, outbox_shadow=True, task_publish_retry=False)
    with shop.maker() as session, shop.outbox.capture(session), pytest.raises(OperationalError):
        shop.charge.delay(1)
    shop.engine.dispose()
    shop.outbox.close()
    shop.app.close()


# -- other kinds of connection ------------------------------------------------------------------------------------


def async_url(shop: Shop) -> sa.URL:
    url = sa.make_url(shop.url)
    return url.set(drivername={"sqlite": "sqlite+aiosqlite"}.get(url.get_backend_name(), "postgresql+asyncpg"))


def test_an_async_capture_is_rehearsed(shop: Shop) -> None:
    refused = told(shop)

    async def main() -> None:
        engine = create_async_engine(async_url(shop))
        if engine.dialect.name == "sqlite":
            shop.outbox.configure_sqlite(engine)
        for number in (1, 2):  # the second one has other content under the same key
            async with shop.outbox.begin(async_sessionmaker(engine), workflow_id="w") as session:
                session.add(Order(name=str(number)))
                shop.charge.delay(number)
        with suppress(BoomError):
            async with shop.outbox.begin(async_sessionmaker(engine)) as session:
                session.add(Order(name="3"))
                shop.charge.delay(3)
                raise BoomError
        await engine.dispose()

    asyncio.run(main())
    assert [json.loads(message.body)[0] for message in received(shop)] == [[1], [2], [3]]
    assert len(refused) == 1
    assert shop.orders() == {"1", "2"}
    assert shop.row()["status"] == "cancelled"


def test_what_is_staged_by_await_is_sent_too(shop: Shop) -> None:

    async def main() -> list[Staged]:
        engine = create_async_engine(async_url(shop))
        async with engine.begin() as connection:
            staged = [await shop.outbox.astage(connection, shop.charge.s(1))]
            await shop.outbox.astage_many(connection, (shop.charge.s(n) for n in (2, 3)))
        await engine.dispose()
        return staged

    (staged,) = asyncio.run(main())
    messages = received(shop)
    assert [json.loads(message.body)[0] for message in messages] == [[1], [2], [3]]
    assert messages[0].headers["id"] == staged.task_id
    assert {row["status"] for row in shop.rows()} == {"cancelled"}


def test_a_capture_on_djangos_connection_is_rehearsed(shop: Shop) -> None:
    refused = told(shop)
    with configured(default=database(shop.url)):
        with transaction.atomic(), shop.outbox.capture(workflow_id="w"):
            shop.charge.delay(1)
        with transaction.atomic(), shop.outbox.capture(workflow_id="w"):
            shop.charge.delay(2)  # another task under the same key
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO orders (name) VALUES ('a')")
    assert len(received(shop)) == 2
    assert len(refused) == 1
    assert shop.orders() == {"a"}
    assert shop.row()["status"] == "cancelled"


def test_a_capture_on_psycopgs_connection_is_rehearsed(postgres_url: str, embedded_url: str) -> None:
    shop = open_shop(postgres_url, broker=embedded_url, outbox_shadow=True, task_default_queue="shop")
    refused = told(shop)
    dsn = sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        with shop.outbox.capture(first, workflow_id="w"):
            shop.charge.delay(1)
        second.execute("SET LOCAL lock_timeout = '50ms'")
        with shop.outbox.capture(second, workflow_id="w"):
            shop.charge.delay(1)  # waits for the other one's key, and no longer
        second.execute("INSERT INTO orders (name) VALUES ('a')")
    assert len(received(shop)) == 2
    assert len(refused) == 1
    assert shop.orders() == {"a"}
    shop.engine.dispose()
    shop.outbox.close()
    shop.app.close()
