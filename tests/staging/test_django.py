"""Django's connections: the row lives and dies with atomic(), on each database."""

from __future__ import annotations

import asyncio
import unittest
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from asgiref.sync import sync_to_async
from celery import Celery
from django.db import IntegrityError, connection, connections, transaction
from django.db.utils import InternalError, OperationalError

from outbox_relay import DispatchKeyConflict, Outbox, StagingError, StoreError
from outbox_relay.publish.capture import diverted
from outbox_relay.staging.on_commit import stage_on_commit_calls_of
from outbox_relay.store.wake import channel_name
from tests.staging.django_stand import configured, database, forget
from tests.staging.shop import BoomError, Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def django(shop: Shop) -> Iterator[Shop]:
    """A shop whose database is Django's, by two aliases."""
    with configured(default=database(shop.url), other=database(shop.url)):
        yield shop


def insert_order(name: str, using: str = "default") -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("INSERT INTO orders (name) VALUES (%s)", [name])


def sent(shop: Shop) -> list[int]:
    return sorted(int(row["body"].decode().split("[[")[1].split("]")[0]) for row in shop.rows())


def test_a_row_lives_and_dies_with_atomic(django: Shop) -> None:
    with transaction.atomic():
        insert_order("a")
        staged = django.outbox.stage(None, django.charge.s(1))
        django.outbox.stage("default", django.charge.s(2))
        django.outbox.stage(connection, django.charge.s(3))
        django.outbox.stage(connections["default"], django.charge.s(4))
    with suppress(BoomError), transaction.atomic():
        insert_order("b")
        django.outbox.stage(None, django.charge.s(5))
        raise BoomError
    assert sent(django) == [1, 2, 3, 4]
    assert django.rows()[0]["task_id"] == staged.task_id
    assert django.orders() == {"a"}


def test_a_row_is_the_same_as_one_that_was_staged_by_sqlalchemy(django: Shop) -> None:
    def signature() -> Any:
        instant = datetime(2040, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
        return django.anything.s("ü\x00☃ 100%s ?", a=[1, None]).set(
            eta=instant, expires=instant + timedelta(days=1), priority=3, task_id="same"
        )

    where = {"namespace": "acme", "workflow_id": "w", "node": "box"}
    with django.maker() as session, session.begin():
        django.outbox.stage(session, signature(), ordinal=0, **where)
    with transaction.atomic():
        django.outbox.stage(None, signature(), ordinal=1, **where)
    first, second = ({**row} for row in django.rows())
    assert {name for name in first if first[name] != second[name]} == {"id", "ordinal", "dispatch_key", "created_at"}


def test_savepoints(django: Shop) -> None:
    with transaction.atomic(durable=True):
        django.outbox.stage(None, django.charge.s(1))
        with suppress(BoomError), transaction.atomic():
            django.outbox.stage(None, django.charge.s(2))
            raise BoomError
        with transaction.atomic():
            django.outbox.stage(None, django.charge.s(3))
        with transaction.atomic(savepoint=False):
            django.outbox.stage(None, django.charge.s(4))
    with suppress(BoomError), transaction.atomic():
        with transaction.atomic():
            django.outbox.stage(None, django.charge.s(5))
        raise BoomError
    with transaction.atomic():
        django.outbox.stage(None, django.charge.s(6))
        transaction.set_rollback(True)
    assert sent(django) == [1, 3, 4]


def test_many_at_once_and_again(django: Shop) -> None:
    with transaction.atomic():
        first = django.outbox.stage_many(None, (django.charge.s(n) for n in range(1100)), workflow_id="w")
    with transaction.atomic():
        again = django.outbox.stage_many(None, [django.charge.s(n) for n in range(3)], workflow_id="w", namespace="b")
        same = django.outbox.stage_many(None, [django.charge.s(n) for n in range(3)], workflow_id="w")
    assert all(one.created for one in again)
    assert [one.task_id for one in same] == [one.task_id for one in first[:3]]
    assert len(django.rows()) == 1103


def test_a_conflict_leaves_the_transaction_usable(django: Shop) -> None:
    with transaction.atomic():
        django.outbox.stage(None, django.charge.s(1), dispatch_key="k")
        with pytest.raises(DispatchKeyConflict):
            django.outbox.stage(None, django.charge.s(2), dispatch_key="k")
        django.outbox.stage_many(None, [django.charge.s(n) for n in range(3)], workflow_id="w")
        with pytest.raises(DispatchKeyConflict):
            django.outbox.stage_many(None, [django.charge.s(n + 1) for n in range(4)], workflow_id="w")
        insert_order("a")
    assert len(django.rows()) == 4
    assert django.orders() == {"a"}


# -- whether there is a transaction -------------------------------------------------------------------------------


def test_outside_atomic_it_is_refused(django: Shop) -> None:
    for given in (None, "default", connection):
        with pytest.raises(StagingError, match=r"transaction\.atomic"):
            django.outbox.stage(given, django.charge.s(1))
    with transaction.atomic(using="other"), pytest.raises(StagingError, match=r"transaction\.atomic"):
        django.outbox.stage(None, django.charge.s(1))
    assert sent(django) == []


def test_with_autocommit_off_commit_and_rollback_are_the_callers(django: Shop) -> None:
    transaction.set_autocommit(False)
    django.outbox.stage(None, django.charge.s(1))
    transaction.rollback()
    django.outbox.stage(None, django.charge.s(2))
    transaction.commit()
    if connection.vendor == "sqlite":
        with transaction.atomic(), pytest.raises(StagingError, match="SAVEPOINT"):
            django.outbox.stage(None, django.charge.s(3))
        transaction.rollback()
    else:
        with transaction.atomic():
            django.outbox.stage(None, django.charge.s(3))
        transaction.rollback()
    assert sent(django) == [2]


def test_a_transaction_that_will_be_rolled_back_says_so(django: Shop) -> None:
    insert_order("taken")
    with transaction.atomic():
        with suppress(IntegrityError), transaction.atomic(savepoint=False):
            insert_order("taken")
        with pytest.raises(StagingError, match="failed"):
            django.outbox.stage(None, django.charge.s(1))
    assert sent(django) == []


def test_every_alias_is_a_database_of_its_own(django: Shop) -> None:
    with transaction.atomic(using="other"):
        django.outbox.stage("other", django.charge.s(1))
    with suppress(BoomError), transaction.atomic(using="other"):
        django.outbox.stage(connections["other"], django.charge.s(2))
        raise BoomError
    with transaction.atomic(), pytest.raises(StagingError, match="'default', 'other'"):
        django.outbox.stage("third", django.charge.s(3))
    with transaction.atomic(), pytest.raises(StagingError, match="bind="):
        django.outbox.stage(None, django.charge.s(3), bind=django.engine)
    assert sent(django) == [1]


def test_without_tables_it_says_how_to_make_them(django: Shop) -> None:
    django.outbox.tables.metadata.drop_all(django.engine)
    with pytest.raises(StoreError, match="outbox migrate"), transaction.atomic():
        django.outbox.stage(None, django.charge.s(1))


def test_code_without_atomic_is_refused_in_a_testcase_as_in_production(django: Shop) -> None:
    from django.test import TestCase

    outcomes = []

    class Case(TestCase):
        databases = {"default"}  # noqa: RUF012 - Django's interface

        def test(self) -> None:
            with pytest.raises(StagingError, match="TestCase"):
                django.outbox.stage(None, django.charge.s(1))
            with transaction.atomic():
                django.outbox.stage(None, django.charge.s(2))
            outcomes.append("ran")

    result = unittest.TestResult()
    unittest.TestSuite([Case("test")]).run(result)
    assert (result.failures, result.errors, outcomes) == ([], [], ["ran"])
    assert sent(django) == []


# -- captures -----------------------------------------------------------------------------------------------------


def test_what_existing_code_sends_is_captured(django: Shop) -> None:
    with transaction.atomic(), django.outbox.capture(namespace="acme"):
        first = django.charge.delay(1)
        with suppress(BoomError), transaction.atomic():
            django.charge.delay(2)
            raise BoomError
    with suppress(BoomError), transaction.atomic(), django.outbox.capture("default"):
        django.charge.delay(3)
        raise BoomError
    with django.outbox.capture(None):  # around everything: each transaction inside has its own
        with pytest.raises(StagingError, match=r"transaction\.atomic"):
            django.charge.delay(4)
        with transaction.atomic():
            django.charge.delay(5)
    assert sent(django) == [1, 5]
    assert django.rows()[0]["task_id"] == first.id  # the id is known before the commit


def test_delay_on_commit_stages_in_a_capture(django: Shop) -> None:
    django.app.task_cls = "celery.contrib.django.task:DjangoTask"

    @django.app.task(name="shop.later", shared=False)
    def later(number: int) -> None:
        """Sent on commit."""

    with transaction.atomic(), django.outbox.capture():
        later.delay_on_commit(1)
        later.apply_async_on_commit((2,), countdown=5)
    with suppress(BoomError), transaction.atomic(), django.outbox.capture():
        later.delay_on_commit(3)
        raise BoomError
    assert sent(django) == [1, 2]


def test_delay_on_commit_of_a_marked_task_stages_where_a_transaction_is_open(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shop in opened(database_url, outbox_tasks=["shop.*"]):
        monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "of.the.shop")  # by which Celery and the outbox know of Django
        stage_on_commit_calls_of(shop.app, shop.app.outbox_stages_now)
        shop.app.task_cls = "celery.contrib.django.task:DjangoTask"
        later = shop.app.task(name="shop.later", shared=False)(body)
        with configured(default=database(database_url)):
            with transaction.atomic():
                later.delay_on_commit(1)
            with suppress(BoomError), transaction.atomic():
                later.delay_on_commit(2)
                raise BoomError
            with pytest.raises(StagingError, match="outside a transaction"):
                later.delay_on_commit(3)
        assert sent(shop) == [1]


def body(number: int) -> None:
    """The body of a task."""


class Directly:
    """A sink that stands where the broker would: it takes what goes past the outbox."""

    offline = True
    tees = False

    def __init__(self, app: Any) -> None:
        self.app = app
        self.sent: list[str] = []

    def wants(self, _: Any) -> bool:
        return True

    def take(self, message: Any) -> None:
        self.sent.append(message.task)


def test_a_hook_of_on_commit_runs_after_the_capture_and_after_the_transaction(django: Shop) -> None:
    """As documented: what a hook sends is either sent past the outbox, or refused; the cure is to send at once."""
    direct = Directly(django.app)
    with diverted(direct):
        with transaction.atomic(), django.outbox.capture():
            transaction.on_commit(partial(django.charge.delay, 1))
        with pytest.raises(StagingError, match="on_commit"), django.outbox.capture(), transaction.atomic():
            transaction.on_commit(partial(django.charge.delay, 2))
    assert direct.sent == ["shop.charge"]
    assert sent(django) == []


def test_async_code_stages_by_way_of_sync_to_async(django: Shop) -> None:
    def work() -> None:
        with transaction.atomic():
            django.charge.delay(1)
        with suppress(BoomError), transaction.atomic():
            django.charge.delay(2)
            raise BoomError

    async def view() -> None:
        with pytest.raises(StagingError, match="sync_to_async"):
            django.outbox.stage(None, django.charge.s(3))
        with pytest.raises(StagingError, match="without await"):
            await django.outbox.astage("default", django.charge.s(3))
        with django.outbox.capture():
            await sync_to_async(work)()
        await sync_to_async(forget)()

    asyncio.run(view())
    assert sent(django) == [1]


# -- PostgreSQL alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"server_side_binding": True}, {"isolation_level": 3}])
def test_options_of_the_connection_do_not_matter(pg_shop: Shop, options: dict[str, Any]) -> None:
    with configured(default=database(pg_shop.url, **options)):
        with transaction.atomic():
            pg_shop.outbox.stage(None, pg_shop.charge.s(1), namespace="acme")
            pg_shop.outbox.stage_many(None, [pg_shop.charge.s(n) for n in (2, 3)])
        assert sent(pg_shop) == [1, 2, 3]


def test_the_wake_goes_out_at_the_commit_and_not_before(pg_shop: Shop) -> None:
    import psycopg

    dsn = sa.make_url(pg_shop.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with configured(default=database(pg_shop.url)), psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute(f'LISTEN "{channel_name(pg_shop.outbox.tables)}"')
        with transaction.atomic():
            pg_shop.outbox.stage(None, pg_shop.charge.s(1))
            assert list(listener.notifies(timeout=0.2, stop_after=1)) == []
        assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1


def test_djangos_own_errors_come_through(pg_shop: Shop) -> None:
    with configured(default=database(pg_shop.url), other=database(pg_shop.url)):
        with transaction.atomic(), transaction.atomic(using="other"):
            pg_shop.outbox.stage(None, pg_shop.charge.s(1), dispatch_key="k")
            with connections["other"].cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises((OperationalError, InternalError)), transaction.atomic(using="other"):
                pg_shop.outbox.stage("other", pg_shop.charge.s(1), dispatch_key="k")
        assert sent(pg_shop) == [1]


def test_checks_tell_of_a_schema_that_djangos_migrations_do_not_know(sqlite_url: str) -> None:
    with configured(default=database(sqlite_url)):
        from outbox_relay.contrib.django.checks import check_outbox

        for schema, ids in ((None, []), ("jobs", ["outbox_relay.W004"])):
            app = Celery("shop", set_as_current=False)
            app.conf.update(outbox_enabled=True, outbox_database_url=sqlite_url, outbox_schema=schema)
            assert [one.id for one in check_outbox(Outbox(app))] == ids
