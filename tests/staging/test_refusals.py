"""What cannot be staged is refused at once, says what to do, and leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain, chord, group
from kombu.common import Broadcast

from outbox_relay import Outbox, SettingsError, StagingError, StoreError
from tests.staging.shop import Shop, opened

if TYPE_CHECKING:
    from collections.abc import Callable


def refused(shop: Shop, signature: Any, *, error: type[Exception] = StagingError, **options: Any) -> str:
    """Stage in all three ways; each has to refuse it and to leave nothing. Returns the message."""
    texts = []

    def one(session: Any) -> None:
        shop.outbox.stage(session, signature, **options)

    def many(session: Any) -> None:
        shop.outbox.stage_many(session, [shop.charge.s(1), signature], **shared)

    def captured(session: Any) -> None:
        with shop.outbox.capture(session, **shared):
            signature.apply_async()

    shared = {name: value for name, value in options.items() if name not in {"ordinal", "dispatch_key"}}
    ways: list[Callable[[Any], None]] = [one]
    if shared == options:
        ways.append(many)
        if hasattr(signature, "apply_async") and "task_queue" not in options:
            ways.append(captured)
    for way in ways:
        with shop.maker() as session, session.begin():
            with pytest.raises(error) as caught:
                way(session)
            texts.append(str(caught.value))
        assert shop.rows() == [], way.__name__
    return texts[0]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"namespace": "a b"}, "63 ASCII letters"),
        ({"namespace": ""}, "63 ASCII letters"),
        ({"namespace": "-a"}, "starts with"),
        ({"namespace": "x" * 64}, "63"),
        ({"namespace": None}, "not a string"),
        ({"namespace": "größe"}, "ASCII"),
        ({"node": "a@b"}, "63 ASCII letters"),
        ({"node": "\N{PILE OF POO}" * 70}, "ASCII"),
        ({"task_queue": ""}, "empty"),
        ({"task_queue": 5}, "not a string"),
        ({"namespace": "acme", "task_queue": "a:b"}, "kept for namespace"),
        ({"node": "box-7", "task_queue": "a@b"}, "kept for namespace"),
        ({"task_queue": "q" * 256}, "255"),
        ({"namespace": "acme", "task_queue": "q" * 251}, "255"),
        ({"task_queue": "\N{PILE OF POO}" * 64}, "256 bytes"),
        ({"dispatch_key": ""}, "empty"),
        ({"dispatch_key": "a\x00b"}, "NUL"),
        ({"dispatch_key": "\ud835"}, "surrogate"),
        ({"dispatch_key": "k" * 513}, "512"),
        ({"workflow_id": "a\x00b"}, "NUL"),
        ({"run_id": "r"}, "workflow_id"),
        ({"ordinal": 0}, "workflow_id"),
        ({"workflow_id": "w", "ordinal": -1}, "at least 0"),
        ({"max_attempts": 0}, "at least 1"),
        ({"max_attempts": True}, "at least 1"),
        ({"max_attempts": "3"}, "at least 1"),
        ({"settle_on": "never"}, "'outcome' or 'publish'"),
    ],
    ids=repr,
)
def test_an_option_that_makes_no_sense_is_refused(lite_shop: Shop, options: dict[str, Any], hint: str) -> None:
    assert hint in refused(lite_shop, lite_shop.charge.s(1), **options)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("shop.charge", "not a signature"),
        (5, "not a signature"),
        (None, "not a signature"),
        ({"args": (1,)}, "not a signature"),
        ({"task": "shop.charge", "subtask_type": "no-such-type"}, "not a signature"),
    ],
    ids=repr,
)
def test_what_is_no_signature_is_refused(lite_shop: Shop, given: Any, hint: str) -> None:
    assert hint in refused(lite_shop, given)


def test_a_task_is_no_signature(lite_shop: Shop) -> None:
    with lite_shop.maker() as session, session.begin(), pytest.raises(StagingError, match=r"write task\.s"):
        lite_shop.outbox.stage(session, lite_shop.charge)


def test_a_canvas_of_several_messages_says_how_to_stage_it(lite_shop: Shop) -> None:
    charge = lite_shop.charge
    several = {
        "group": group(charge.s(1), charge.s(2)),
        "chord": chord([charge.s(1), charge.s(2)], lite_shop.anything.s()),
        "chunks": charge.chunks([(1,), (2,), (3,)], 2),
        "chain that starts with a chord": chain(group(charge.s(1), charge.s(2)), group(charge.s(3), charge.s(4))),
    }
    for kind, signature in several.items():
        with lite_shop.maker() as session, session.begin():
            with pytest.raises(StagingError, match="stage_many") as caught:
                lite_shop.outbox.stage(session, signature)
            assert kind.split()[-1] in str(caught.value)
    assert lite_shop.rows() == []


def test_a_chord_without_a_result_backend_says_what_it_needs(lite_shop: Shop) -> None:
    charge = lite_shop.charge
    lite_shop.app.conf.result_backend = "disabled://"
    for one in (
        chord([charge.s(1), charge.s(2)], lite_shop.anything.s()),
        chain(charge.s(1), group(charge.s(2)) | charge.s(3)),
    ):
        with lite_shop.maker() as session, session.begin(), pytest.raises(StagingError, match="Set result_backend to"):
            lite_shop.outbox.stage_many(session, [one])
    assert lite_shop.rows() == []


def test_arguments_that_do_not_fit_raise_celerys_own_error(lite_shop: Shop) -> None:
    assert "missing 1 required positional argument" in refused(lite_shop, lite_shop.charge.s(), error=TypeError)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"headers": {"x": {1: 2}}}, "x = {1: 2}"),
        ({"headers": {"x": {1, 2}}}, "cannot be stored"),
        ({"headers": {"x": ...}}, "cannot be stored"),
        ({"headers": {"x": {"__type__": "uuid", "__value__": 1}}}, "cannot be stored"),
        ({"headers": {5: "x"}}, "must be a string"),
        ({"app_id": {1: 2}}, "properties"),
        ({"task_id": "t" * 256}, "255 bytes"),
        ({"task_id": "a\x00b"}, "NUL"),
        ({"task_id": "\ud835"}, "surrogate"),
        ({"routing_key": "k" * 256, "exchange": "e"}, "255"),
        ({"exchange": "e" * 256, "routing_key": "k"}, "255"),
        ({"reply_to": "r" * 256}, "255"),
        ({"priority": "high"}, "from 0 to 255"),
        ({"priority": 256}, "from 0 to 255"),
        ({"priority": -1}, "from 0 to 255"),
        ({"time_limit": "soon"}, "number of seconds"),
        ({"soft_time_limit": "soon"}, "number of seconds"),
    ],
    ids=repr,
)
def test_a_message_that_would_not_arrive_as_it_is_is_refused(
    lite_shop: Shop, options: dict[str, Any], hint: str
) -> None:
    assert hint in refused(lite_shop, lite_shop.charge.s(1).set(**options))


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"compression": "nosuch"}, "nosuch"),
        ({"serializer": "nosuch"}, "nosuch"),
        ({"countdown": float("nan")}, "NaN"),
        ({"countdown": 1e15}, "Overflow"),
        ({"expires": "tomorrow"}, "tomo"),
    ],
    ids=repr,
)
def test_what_celery_cannot_make_a_message_of_is_refused(lite_shop: Shop, options: dict[str, Any], hint: str) -> None:
    signature = lite_shop.charge.s(1).set(**options)
    with lite_shop.maker() as session, session.begin():
        for way in (lite_shop.outbox.stage, lambda *given: lite_shop.outbox.stage_many(given[0], [given[1]])):
            with pytest.raises(StagingError) as caught:
                way(session, signature)
            assert hint in str(caught.value)
    assert lite_shop.rows() == []


def test_an_empty_chain_is_refused(lite_shop: Shop) -> None:
    with lite_shop.maker() as session, session.begin(), pytest.raises(StagingError):
        lite_shop.outbox.stage(session, chain())


def test_a_body_over_the_limit_is_refused(sqlite_url: str) -> None:
    for shop in opened(sqlite_url, outbox_max_body_bytes=1000):
        assert "outbox_max_body_bytes" in refused(shop, shop.anything.s("x" * 1000))
        with shop.maker() as session, session.begin():
            shop.outbox.stage(session, shop.anything.s("x" * 1000).set(compression="gzip"))
        assert len(shop.rows()) == 1


def test_a_broadcast_is_refused(sqlite_url: str) -> None:
    for shop in opened(sqlite_url, task_queues=[Broadcast("everybody")]):
        assert "Broadcast" in refused(shop, shop.charge.s(1).set(queue="everybody"))


def test_an_exchange_without_a_queue_cannot_be_namespaced(lite_shop: Shop) -> None:
    signature = lite_shop.charge.s(1).set(exchange="events", routing_key="a.b")
    assert "give task_queue" in refused(lite_shop, signature, namespace="acme")


def test_eager_tasks_are_refused(sqlite_url: str) -> None:
    for shop in opened(sqlite_url, task_always_eager=True):
        assert "task_always_eager" in refused(shop, shop.charge.s(1))


def test_a_task_of_another_app_is_refused(lite_shop: Shop) -> None:
    other = Celery("other", broker="memory://", set_as_current=False)

    @other.task(name="other.task", shared=False)
    def task() -> None:
        """Never runs."""

    with lite_shop.maker() as session, session.begin(), pytest.raises(StagingError, match="another app"):
        lite_shop.outbox.stage(session, task.s())
    with lite_shop.maker() as session, session.begin(), pytest.raises(StagingError, match="another app"):
        lite_shop.outbox.stage_many(session, group(lite_shop.charge.s(1), task.s()))
    assert lite_shop.rows() == []


def test_a_signature_without_an_app_is_staged_by_this_one(lite_shop: Shop) -> None:
    other = Celery("current", broker="memory://")
    try:
        with lite_shop.maker() as session, session.begin():
            lite_shop.outbox.stage(session, dict(lite_shop.charge.s(1)))
            lite_shop.outbox.stage(session, lite_shop.app.signature("by.name"))
    finally:
        other.close()
    assert [row["task"] for row in lite_shop.rows()] == ["shop.charge", "by.name"]


# -- settings -----------------------------------------------------------------------------------------------------


def test_a_dormant_outbox_says_how_to_switch_it_on(lite_shop: Shop) -> None:
    shop = lite_shop
    dormant = Outbox(Celery("dormant", set_as_current=False))
    with shop.maker() as session, session.begin():
        for call in (
            lambda: dormant.stage(session, shop.charge.s(1)),
            lambda: dormant.stage_many(session, []),
            lambda: dormant.capture(session),
            lambda: dormant.begin(shop.maker),
            lambda: dormant.inspect,
        ):
            with pytest.raises(SettingsError, match="outbox_enabled = True"):
                call()


def test_a_wrong_setting_is_told_at_first_use(sqlite_url: str) -> None:
    for shop in opened(sqlite_url):
        app = Celery("wrong", set_as_current=False)
        app.conf.update(outbox_enabled=True, outbox_database_url=sqlite_url, outbox_batch_sise=5)
        outbox = Outbox(app)
        with shop.maker() as session, session.begin(), pytest.raises(SettingsError, match="outbox_batch_size"):
            outbox.stage(session, shop.charge.s(1))
        app.close()


def test_configuration_may_come_after_the_outbox(sqlite_url: str) -> None:
    for shop in opened(sqlite_url):
        app = Celery("late", set_as_current=False)
        outbox = Outbox(app)
        app.conf.update(outbox_enabled=True, outbox_database_url=sqlite_url)
        with shop.maker() as session, session.begin():
            outbox.stage(session, app.signature("late.task"))
        assert shop.row()["task"] == "late.task"
        app.close()


def test_one_outbox_an_app(lite_shop: Shop) -> None:
    with pytest.raises(SettingsError, match=r"app\.outbox"):
        Outbox(lite_shop.app)


def test_a_database_without_the_tables_says_what_to_run(shop: Shop) -> None:
    shop.outbox.tables.metadata.drop_all(shop.engine)
    with shop.maker() as session, session.begin():
        with pytest.raises(StoreError, match="migrate"):
            shop.outbox.stage(session, shop.charge.s(1))
        session.rollback()


def test_a_closed_outbox_knows_its_namespaces(database_url: str) -> None:
    for shop in opened(database_url, outbox_namespaces="closed"):
        assert "acme" in refused(shop, shop.charge.s(1), namespace="acme")
        acme = {"namespace": "acme", "created_at": shop.now()}
        with shop.engine.begin() as connection:
            connection.execute(shop.outbox.tables.namespace.insert().values(acme))
        assert "did you mean 'acme'" in refused(shop, shop.charge.s(1), namespace="acne")
        with shop.maker() as session, session.begin():
            shop.outbox.stage(session, shop.charge.s(1), namespace="acme")
            shop.outbox.stage(session, shop.charge.s(1))
        assert len(shop.rows()) == 2
