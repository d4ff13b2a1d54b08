"""A row filled in from a template is the row that Celery's own builder would have made."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task, signals
from celery.app.trace import build_tracer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import serialization
from kombu.utils.json import loads

from outbox_relay import StagingError
from outbox_relay.staging.options import Options
from outbox_relay.staging.stage import Stager
from outbox_relay.store.wake import WakeThrottle
from tests.staging.shop import Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_relay.core.row import NewRow


class Both:
    """Makes the rows of a signature in both ways."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self._with = self._stager()

    def _stager(self) -> Stager:
        outbox = self.shop.outbox
        return Stager(self.shop.app, outbox.settings, outbox.tables, WakeThrottle())

    def built(self, signature: Any, options: Options | None = None) -> NewRow:
        """By Celery: a new stager has no templates."""
        (row,) = self._rows(self._stager(), signature, options)
        return row

    def filled(self, signature: Any, options: Options | None = None) -> NewRow | None:
        """From the template that an earlier signature has left; None where there is none to use."""
        filler = self._with.filler(options or Options())
        return filler.row(filler.key(signature), signature, None)

    def teach(self, signature: Any, options: Options | None = None) -> None:
        self._rows(self._with, signature, options)

    @staticmethod
    def _rows(stager: Stager, signature: Any, options: Options | None) -> list[NewRow]:
        options = options or Options()
        return stager.rows(signature, options, None, stager.filler(options))


@pytest.fixture
def both(lite_shop: Shop) -> Both:
    return Both(lite_shop)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    for shop in opened(f"sqlite:///{tmp_path_factory.mktemp('templates') / 'outbox.db'}"):
        yield Both(shop)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.just("x" * 3000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": 5},
    {"queue": "slow", "ignore_result": True},
    {"time_limit": 9, "soft_time_limit": 8, "shadow": 'a "shadow" \N{SNOWMAN}'},
    {"serializer": "json"},
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    options=st.sampled_from(OPTIONS),
    place=st.sampled_from([Options(), Options(namespace="acme"), Options(node="box-7"), Options(task_queue="other")]),
    args=st.lists(values, max_size=3),
    kwargs=st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=3),
)
def test_a_filled_row_is_the_row_that_celery_builds(
    lasting: Both, options: dict[str, Any], place: Options, args: list[Any], kwargs: dict[str, Any]
) -> None:
    anything = lasting.shop.anything
    lasting.teach(anything.s(1, a=2).set(**options), place)
    signature = anything.signature(tuple(args), kwargs, task_id="some-id", **options)
    built = lasting.built(signature, place)
    filled = lasting.filled(signature, place)
    usual = b'"__type__"' not in built.body and list(kwargs) == sorted(kwargs)
    assert filled == (built if usual else None)


@pytest.mark.parametrize("args", [(), (1,), ([1, 2], {"a": None})], ids=repr)
def test_arguments_without_frills_are_filled_in(both: Both, args: tuple[Any, ...]) -> None:
    both.teach(both.shop.anything.s(0))
    signature = both.shop.anything.s(*args).set(task_id="t")
    assert both.filled(signature) == both.built(signature)


def test_each_filled_row_has_an_id_of_its_own(both: Both) -> None:
    both.teach(both.shop.charge.s(0))
    signature = both.shop.charge.s(1)
    rows = [both.filled(signature) for _ in range(3)]
    ids = {row.task_id for row in rows if row is not None}
    assert len(ids) == 3
    for row in rows:
        assert row is not None
        headers = loads(row.headers)
        assert headers["id"] == headers["root_id"] == row.task_id == row.dispatch_key
        assert loads(row.properties)["correlation_id"] == row.task_id


def test_a_filled_row_answers_to_the_thread_that_staged_it(both: Both) -> None:
    both.teach(both.shop.charge.s(0))
    answers = []

    def stage() -> None:
        row = both.filled(both.shop.charge.s(1))
        assert row is not None
        answers.append((loads(row.properties)["reply_to"], both.shop.app.thread_oid))

    thread = threading.Thread(target=stage)
    thread.start()
    thread.join()
    stage()
    assert all(reply_to == oid for reply_to, oid in answers)
    assert answers[0] != answers[1]


def test_arguments_that_do_not_fit_raise_celerys_own_error(both: Both) -> None:
    both.teach(both.shop.charge.s(0))
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        both.filled(both.shop.charge.s())


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 5},
        {"expires": 5},
        {"headers": {"x": 1}},
        {"compression": "gzip"},
        {"serializer": "pickle"},
        {"link": "a link"},
        {"task_id": "a\x00b"},
        {"task_id": "t" * 300},
        {"task_id": 5},
        {"exchange": "e", "routing_key": "k"},
        {"root_id": "r"},
        {"priority": [1]},
    ],
    ids=repr,
)
def test_what_is_out_of_the_ordinary_is_built_by_celery(both: Both, options: dict[str, Any]) -> None:
    if "link" in options:
        options = {"link": both.shop.anything.s()}
    both.teach(both.shop.charge.s(0))
    signature = both.shop.charge.s(1).set(**options)
    try:
        both.teach(signature)
    except StagingError:
        assert options.keys() & {"task_id", "priority"}
    assert both.filled(signature) is None


def test_a_value_that_cannot_be_carried_is_refused_as_ever(both: Both) -> None:
    both.teach(both.shop.anything.s(0))
    with both.shop.maker() as session, session.begin():
        both.shop.outbox.stage(session, both.shop.anything.s(0))
        for value in (object(), {(1, 2): 3}, {"__type__": "x", "__value__": 1}, "x" * 2_000_000):
            assert both.filled(both.shop.anything.s(value)) is None
            with pytest.raises(StagingError):
                both.shop.outbox.stage(session, both.shop.anything.s(value))
    assert len(both.shop.rows()) == 1


def test_a_receiver_of_the_publish_signals_sees_every_message(both: Both) -> None:
    both.teach(both.shop.charge.s(0))
    for signal in (signals.before_task_publish, signals.after_task_publish, signals.task_sent):

        def receiver(**_: Any) -> None:
            """Looks on."""

        signal.connect(receiver)
        try:
            assert both.filled(both.shop.charge.s(1)) is None
        finally:
            signal.disconnect(receiver)
    assert both.filled(both.shop.charge.s(1)) is not None


@pytest.mark.parametrize("where", ["task class", "task", "app", "app, with its marks", "amqp", "producer", "app class"])
def test_an_override_anywhere_sees_every_message(both: Both, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery.app.amqp import AMQP
    from kombu import Producer

    app, charge = both.shop.app, both.shop.charge
    both.teach(charge.s(0))
    target, name = {
        "task class": (Task, "apply_async"),
        "task": (charge, "apply_async"),
        "app": (app, "send_task"),
        "app, with its marks": (app, "send_task"),
        "app class": (Celery, "send_task"),
        "amqp": (AMQP, "as_task_v2"),
        "producer": (Producer, "publish"),
    }[where]
    stock = getattr(target, name)

    def patched(*args: Any, **options: Any) -> Any:
        return stock(*args, **options)

    if where == "app, with its marks":
        patched = functools.wraps(stock)(patched)
    monkeypatch.setattr(target, name, patched)
    assert both.filled(charge.s(1)) is None


def test_a_router_of_the_shops_own_sees_every_message(sqlite_url: str) -> None:
    def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> dict[str, str]:
        return {"queue": "large" if args and args[0] > 5 else "small"}

    for shop in opened(sqlite_url, task_routes=(route,)):
        both = Both(shop)
        both.teach(shop.charge.s(1))
        assert both.filled(shop.charge.s(9)) is None
        with shop.maker() as session, session.begin():
            shop.outbox.stage_many(session, [shop.charge.s(1), shop.charge.s(9)])
        assert sorted(row["task_queue"] for row in shop.rows()) == ["large", "small"]


def test_a_changed_configuration_is_noticed(both: Both) -> None:
    shop = both.shop
    both.teach(shop.charge.s(0))
    assert both.filled(shop.charge.s(1)) is not None
    shop.app.conf.task_always_eager = True
    assert both.filled(shop.charge.s(1)) is None
    shop.app.conf.task_always_eager = False
    both.teach(shop.charge.s(0))
    assert both.filled(shop.charge.s(1)) is not None
    shop.charge.ignore_result = True
    assert both.filled(shop.charge.s(1)) is None


def test_inside_a_task_celery_builds_it_with_its_parent(both: Both) -> None:
    shop = both.shop
    both.teach(shop.charge.s(0))
    rows = []

    def body() -> None:
        rows.append(both.filled(shop.charge.s(1)))
        rows.append(both.built(shop.charge.s(1)))

    parent = shop.app.task(name="shop.parent", shared=False)(body)
    build_tracer(parent.name, parent, app=shop.app)("p", (), {}, {"id": "p", "task": parent.name, "delivery_info": {}})
    assert rows[0] is None
    assert loads(rows[1].headers)["parent_id"] == "p"


def nothing(_: Any) -> None:
    """Does nothing."""


def test_a_task_that_turns_its_arguments_is_built_by_celery(both: Both) -> None:
    """As Celery does for pydantic models."""

    class Turning(Task):  # type: ignore[misc]
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            return super().apply_async([str(one) for one in args], kwargs, **options)

    turning = both.shop.app.task(name="shop.turning", base=Turning, shared=False)(nothing)
    both.teach(turning.s(0))
    assert both.filled(turning.s(1)) is None


def test_another_meaning_of_json_is_the_apps_own(both: Both) -> None:
    both.teach(both.shop.anything.s(0))
    row = both.filled(both.shop.anything.s(5))
    assert row is not None
    assert serialization.loads(row.body, "application/json", "utf-8")[0] == [5]
