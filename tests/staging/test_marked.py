"""Marked tasks are staged wherever they are sent from, as far as the current transaction can be known."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery import Celery, chain
from celery.app.trace import build_tracer
from celery.backends.base import DisabledBackend
from celery.worker.request import Request
from kombu.exceptions import OperationalError
from kombu.message import Message
from kombu.serialization import dumps
from sqlalchemy.orm import scoped_session, sessionmaker

from outbox_relay import Outbox, SettingsError, StagingError
from outbox_relay.beat import PRUNE, REARM
from tests.staging.shop import DEAD_BROKER, BoomError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    OpenShop = Callable[..., "MarkedShop"]


class MarkedShop:
    """A shop whose sessions are registered, and whose broker is away: what is sent directly raises."""

    def __init__(self, url: str, *, session: Any = "scoped", **conf: Any) -> None:
        self.app = Celery("shop", broker=DEAD_BROKER, set_as_current=False)
        self.app.conf.update(
            outbox_enabled=True,
            outbox_database_url=url,
            broker_connection_timeout=0.2,
            task_publish_retry=False,
            **conf,
        )
        self.engine = sa.create_engine(url)
        if self.engine.dialect.name == "sqlite":
            Outbox.configure_sqlite(self.engine)
        self.sessions = scoped_session(sessionmaker(self.engine))
        self.outbox = Outbox(self.app, session=self.sessions if session == "scoped" else session)
        self.outbox.tables.metadata.create_all(self.engine)
        self.events: list[str] = []
        self.outbox.events.subscribe(lambda event: self.events.append(event.name))

        @self.app.task(name="shop.charge", shared=False, outbox=True)
        def charge(order: int) -> int:
            return order

        @self.app.task(name="shop.mail", shared=False)
        def mail(order: int) -> None: ...

        @self.app.task(name="shop.audit", shared=False, outbox={"namespace": "audit"})
        def audit(order: int) -> None: ...

        self.charge, self.mail, self.audit = charge, mail, audit

    def rows(self) -> list[tuple[str, str]]:
        row = self.outbox.tables.row
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(row.c.task, row.c.namespace).order_by(row.c.id))
            return [(one.task, one.namespace) for one in found]

    def close(self) -> None:
        self.sessions.remove()
        self.engine.dispose()
        self.outbox.close()
        self.app.close()


@pytest.fixture
def open_shop(database_url: str) -> Iterator[OpenShop]:
    opened: list[MarkedShop] = []

    def open_(**options: Any) -> MarkedShop:
        opened.append(MarkedShop(database_url, **options))
        return opened[-1]

    yield open_
    for shop in opened:
        shop.close()


def is_sent_directly(send: Callable[[], Any]) -> bool:
    """The broker is away, and only a direct send finds out."""
    with pytest.raises(OperationalError):
        send()
    return True


def test_a_marked_task_is_staged_in_the_registered_session(open_shop: OpenShop) -> None:
    shop = open_shop()
    with shop.sessions.begin():
        shop.sessions.execute(sa.text("SELECT 1"))
        result = shop.charge.delay(1)
    assert shop.rows() == [("shop.charge", "default")]
    assert shop.outbox.store.find(result.id)


def test_it_is_gone_with_a_rollback(open_shop: OpenShop) -> None:
    shop = open_shop()
    with contextlib.suppress(BoomError), shop.sessions.begin():
        shop.charge.delay(1)
        raise BoomError
    assert shop.rows() == []
    assert "staging.discarded" not in shop.events


def test_every_way_of_sending_it_counts(open_shop: OpenShop) -> None:
    shop = open_shop()
    with shop.sessions.begin():
        shop.charge.apply_async((1,), countdown=5)
        shop.app.send_task("shop.charge", (2,))
        shop.charge.s(3).delay()
        chain(shop.charge.s(4), shop.mail.s()).delay()
    assert shop.rows() == [("shop.charge", "default")] * 4


def test_its_options_may_stand_beside_the_mark(open_shop: OpenShop) -> None:
    shop = open_shop()
    with shop.sessions.begin():
        shop.audit.delay(1)
    assert shop.rows() == [("shop.audit", "audit")]


def test_patterns_mark_tasks_too_and_a_tasks_own_word_counts_more(open_shop: OpenShop) -> None:
    shop = open_shop(outbox_tasks=["shop.*"])

    @shop.app.task(name="shop.ping", shared=False, outbox=False)
    def ping() -> None: ...

    with shop.sessions.begin():
        shop.mail.delay(1)
        shop.app.send_task("shop.of_another_service")
        assert is_sent_directly(ping.delay)
    assert shop.rows() == [("shop.mail", "default"), ("shop.of_another_service", "default")]


def test_a_pattern_for_everything_leaves_what_beat_sends_of_its_own_accord(open_shop: OpenShop) -> None:
    shop = open_shop(outbox_tasks=["*"])
    for name in (REARM, PRUNE, "celery.backend_cleanup"):
        assert is_sent_directly(partial(shop.app.send_task, name))
    with pytest.raises(StagingError, match="outside a transaction"):
        shop.app.send_task("celery.starmap")


def test_an_unmarked_task_is_sent_as_ever(open_shop: OpenShop) -> None:
    shop = open_shop()
    with shop.sessions.begin():
        assert is_sent_directly(lambda: shop.mail.delay(1))
    assert shop.rows() == []


def test_an_open_capture_counts_more_than_the_mark(open_shop: OpenShop) -> None:
    shop = open_shop()
    with shop.sessions.begin(), shop.outbox.capture(shop.sessions, namespace="acme"):
        shop.charge.delay(1)
    assert shop.rows() == [("shop.charge", "acme")]


def test_outside_a_transaction_it_is_refused(open_shop: OpenShop) -> None:
    shop = open_shop()
    with pytest.raises(StagingError, match=r"shop\.charge is marked to be staged, and is sent outside a transaction"):
        shop.charge.delay(1)
    assert not shop.sessions.registry.has(), "no session was made to find out"


def test_outside_a_transaction_it_may_be_sent(open_shop: OpenShop) -> None:
    shop = open_shop(outbox_outside_transaction="send")
    assert is_sent_directly(lambda: shop.charge.delay(1))
    with shop.sessions.begin():
        shop.charge.delay(2)
    assert shop.rows() == [("shop.charge", "default")]


def test_outside_a_transaction_it_may_have_one_of_its_own(open_shop: OpenShop) -> None:
    shop = open_shop(outbox_outside_transaction="own")
    shop.charge.delay(1)
    assert shop.rows() == [("shop.charge", "default")]


def test_a_session_that_closes_without_a_commit_is_told(open_shop: OpenShop) -> None:
    """It had only read, so its code may never commit, and sent its task all the same until now."""
    shop = open_shop()
    shop.sessions.execute(sa.text("SELECT 1"))
    shop.charge.delay(1)
    shop.sessions.remove()
    assert shop.rows() == []
    assert shop.events.count("staging.discarded") == 1


def test_a_savepoint_that_is_released_decides_nothing(open_shop: OpenShop) -> None:
    shop = open_shop()
    shop.sessions.execute(sa.text("SELECT 1"))
    with shop.sessions.begin_nested():
        shop.charge.delay(1)
    shop.sessions.remove()
    assert shop.rows() == []
    assert shop.events.count("staging.discarded") == 1


def test_a_commit_with_a_savepoint_in_it_discards_nothing(open_shop: OpenShop) -> None:
    shop = open_shop()
    with shop.sessions.begin():
        shop.charge.delay(1)
        nested = shop.sessions.begin_nested()
        shop.charge.delay(2)
        nested.rollback()
    shop.sessions.remove()
    assert shop.rows() == [("shop.charge", "default")]
    assert "staging.discarded" not in shop.events


def test_without_a_registered_session_it_says_what_to_do(open_shop: OpenShop) -> None:
    shop = open_shop(session=None)
    with pytest.raises(SettingsError, match=r"register your sessions with Outbox\(app, session="):
        shop.charge.delay(1)
    assert is_sent_directly(lambda: shop.mail.delay(1))


def test_a_function_of_the_shops_may_tell_the_session(open_shop: OpenShop) -> None:
    current: list[Any] = [None]
    shop = open_shop(session=lambda: current[0])
    with pytest.raises(StagingError, match="outside a transaction"):
        shop.charge.delay(1)
    with shop.sessions() as session, session.begin():
        current[0] = session
        shop.charge.delay(1)
    assert shop.rows() == [("shop.charge", "default")]


def test_a_dormant_outbox_stages_nothing(open_shop: OpenShop) -> None:
    shop = open_shop()
    dormant = Celery("dormant", broker=DEAD_BROKER, set_as_current=False)
    dormant.conf.update(broker_connection_timeout=0.2, task_publish_retry=False)
    Outbox(dormant, session=shop.sessions)

    @dormant.task(shared=False, outbox=True)
    def charge(order: int) -> None: ...

    with shop.sessions.begin():
        assert is_sent_directly(lambda: charge.delay(1))
    assert shop.rows() == []


def test_what_celery_sends_by_itself_is_sent_as_ever(open_shop: OpenShop) -> None:
    """A chain goes on after its task: a transaction that the task left open has nothing to do with that."""
    shop = open_shop()
    sent: list[str] = []
    original = shop.app.amqp.send_task_message
    shop.app.amqp.send_task_message = lambda producer, name, message, **options: sent.append(name)

    @shop.app.task(name="shop.step", shared=False)
    def step(order: int) -> int:
        shop.sessions.execute(sa.text("SELECT 1"))  # and it never commits
        return order

    trace = build_tracer(step.name, step, app=shop.app)
    request = {"id": "one", "task": step.name, "chain": [shop.charge.s()], "callbacks": None, "errbacks": None}
    result = trace("one", (7,), {}, request)
    shop.app.amqp.send_task_message = original
    assert result.info is None, result
    assert sent == ["shop.charge"]


def test_a_task_that_is_registered_after_it_was_sent_by_name_is_marked(open_shop: OpenShop) -> None:
    shop = open_shop()
    with shop.sessions.begin():
        assert is_sent_directly(lambda: shop.app.send_task("shop.late"))

        @shop.app.task(name="shop.late", shared=False, outbox=True)
        def late() -> None: ...

        late.delay()
    assert shop.rows() == [("shop.late", "default")]


def test_djangos_environment_variable_without_django_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Celery("shop", broker=DEAD_BROKER, set_as_current=False)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
    monkeypatch.setitem(sys.modules, "django", None)
    monkeypatch.setitem(sys.modules, "celery.contrib.django.task", None)
    assert Outbox(app).app is app


# -- what a worker sends by itself ----------------------------------------------------------------------------------


class SendingBackend(DisabledBackend):
    """A result backend that is not Celery's own, and sends what follows a task, as some do with a chord's body."""

    follows: Any = None

    def mark_as_done(self, *args: Any, **kwargs: Any) -> None:
        self.follows.delay(7)


def run(shop: MarkedShop, task: Any, **request: Any) -> Any:
    trace = build_tracer(task.name, task, app=shop.app)
    about = {"id": "one", "task": task.name, "chain": None, "callbacks": None, "errbacks": None, **request}
    return trace("one", (7,), {}, about).info


@pytest.fixture
def sending_shop(open_shop: OpenShop) -> Iterator[tuple[MarkedShop, list[str]]]:
    """A shop, and the names of the tasks that it sends directly."""
    shop = open_shop()
    sent: list[str] = []
    original = shop.app.amqp.send_task_message
    shop.app.amqp.send_task_message = lambda producer, name, message, **options: sent.append(name)
    yield shop, sent
    shop.app.amqp.send_task_message = original


def test_what_instruments_a_task_does_not_make_its_continuation_the_shops(
    sending_shop: tuple[MarkedShop, list[str]],
) -> None:
    shop, sent = sending_shop
    plain = shop.charge.apply_async

    def instrumented(*args: Any, **options: Any) -> Any:
        return plain(*args, **options)

    shop.charge.apply_async = instrumented

    @shop.app.task(name="shop.step", shared=False)
    def step(order: int) -> int:
        return order

    assert run(shop, step, chain=[shop.charge.s()]) is None
    assert run(shop, step, callbacks=[shop.charge.s()]) is None
    assert sent == ["shop.charge"] * 2


def test_what_a_result_backend_of_others_sends_is_a_continuation(sending_shop: tuple[MarkedShop, list[str]]) -> None:
    shop, sent = sending_shop
    backend = SendingBackend(shop.app)
    backend.follows = shop.charge

    @shop.app.task(name="shop.step", shared=False, backend=backend)
    def step(order: int) -> int:
        return order

    assert run(shop, step) is None
    assert sent == ["shop.charge"]


def test_an_error_callback_of_a_lost_task_is_sent_by_the_workers_main_process(
    sending_shop: tuple[MarkedShop, list[str]],
) -> None:
    shop, sent = sending_shop

    @shop.app.task(name="shop.step", shared=False)
    def step(order: int) -> int:
        return order

    made = shop.app.amqp.as_task_v2("one", step.name, args=(7,), errbacks=[shop.charge.s()])
    content_type, encoding, body = dumps(made.body, serializer="json")
    message = Message(
        body=body,
        content_type=content_type,
        content_encoding=encoding,
        headers=made.headers,
        properties=made.properties,
        delivery_info={},
    )
    request = Request(message, app=shop.app, hostname="here", task=step)
    try:
        raise WorkerLostError("gone")
    except WorkerLostError:
        request.on_failure(ExceptionInfo())
    assert sent == ["shop.charge"]


def test_what_a_task_sends_is_the_shops(open_shop: OpenShop) -> None:
    shop = open_shop()

    @shop.app.task(name="shop.step", shared=False)
    def step(order: int) -> None:
        with shop.sessions.begin():
            shop.charge.s(order).delay()

    assert run(shop, step) is None
    assert shop.rows() == [("shop.charge", "default")]


# -- a rehearsal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", ["scoped", None], ids=["outside a transaction", "no session"])
def test_in_a_rehearsal_what_a_mark_would_refuse_is_told_and_sent(open_shop: OpenShop, session: Any) -> None:
    shop = open_shop(session=session, outbox_shadow=True)
    assert is_sent_directly(lambda: shop.charge.delay(1))
    assert shop.events == ["shadow.refused"]
    assert shop.rows() == []


def test_in_a_rehearsal_a_transaction_of_its_own_that_fails_is_told(open_shop: OpenShop) -> None:
    shop = open_shop(outbox_shadow=True, outbox_outside_transaction="own")
    shop.outbox.store.engine.dispose()

    def refuse(*_: Any) -> None:
        raise ConnectionError("the database is away")

    sa.event.listen(shop.outbox.store.engine, "do_connect", refuse)
    assert is_sent_directly(lambda: shop.charge.delay(1))
    assert shop.events == ["shadow.refused"]


def test_in_a_rehearsal_an_open_capture_counts_more_than_the_mark(open_shop: OpenShop) -> None:
    shop = open_shop(outbox_shadow=True)
    with shop.sessions.begin(), shop.outbox.capture(shop.sessions, namespace="acme"):
        assert is_sent_directly(lambda: shop.charge.delay(1))
    assert shop.rows() == [("shop.charge", "acme")]
    assert shop.events == []


def test_in_a_rehearsal_what_is_staged_is_heard_by_no_capture_and_no_mark(open_shop: OpenShop) -> None:
    shop = open_shop(outbox_shadow=True)
    with shop.sessions.begin():
        assert is_sent_directly(lambda: shop.outbox.stage(shop.sessions, shop.charge.s(1), namespace="acme"))
        with shop.outbox.capture(shop.sessions, namespace="globex"):
            assert is_sent_directly(lambda: shop.outbox.stage(shop.sessions, shop.mail.s(1), namespace="acme"))
    assert shop.rows() == [("shop.charge", "acme"), ("shop.mail", "acme")]
    assert shop.events == []
