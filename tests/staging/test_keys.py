"""The dispatch key: staged again with the same content, a task is not there twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from outbox_relay import DispatchKeyConflict
from outbox_relay.staging.options import Options

if TYPE_CHECKING:
    from tests.staging.shop import Shop


def test_the_same_key_and_content_gives_the_first_task_id(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        first = shop.outbox.stage(session, shop.charge.s(1), dispatch_key="k")
        again = shop.outbox.stage(session, shop.charge.s(1), dispatch_key="k")
    with shop.maker() as session, session.begin():
        later = shop.outbox.stage(session, shop.charge.s(1), dispatch_key="k")
    assert first.created
    assert not again.created
    assert not later.created
    assert {first.task_id, again.task_id, later.task_id} == {shop.row()["task_id"]}


@pytest.mark.parametrize("change", ["arguments", "keywords", "task", "queue", "node"])
def test_other_content_under_a_key_is_a_conflict_and_leaves_the_transaction_usable(shop: Shop, change: str) -> None:
    signature, options = shop.charge.s(1), {}
    if change == "arguments":
        signature = shop.charge.s(2)
    elif change == "keywords":
        signature = shop.charge.s(1, amount=1)
    elif change == "task":
        signature = shop.anything.s(1)
    elif change == "queue":
        options = {"task_queue": "slow"}
    else:
        options = {"node": "box-7"}
    with shop.maker() as session, session.begin():
        shop.outbox.stage(session, shop.charge.s(1), dispatch_key="k")
        with pytest.raises(DispatchKeyConflict, match="'k'"):
            shop.outbox.stage(session, signature, dispatch_key="k", **options)
        shop.outbox.stage(session, shop.charge.s(3))
    assert len(shop.rows()) == 2


def test_options_that_are_not_content_do_not_conflict(lite_shop: Shop) -> None:
    shop = lite_shop
    ways = [
        shop.charge.s(1, amount=2),
        shop.charge.s(1, amount=2).set(priority=3, countdown=60, headers={"x": 1}),
        shop.charge.s(1, amount=2).set(link=shop.anything.s()),
        shop.charge.s(1, amount=2).set(compression="gzip"),
    ]
    with shop.maker() as session, session.begin():
        staged = [shop.outbox.stage(session, one, dispatch_key="k") for one in ways]
        one = shop.outbox.stage(session, shop.anything.s(a=1, b=2), dispatch_key="ab")
        other = shop.outbox.stage(session, shop.anything.s(b=2, a=1), dispatch_key="ab")
    assert len({one.task_id for one in staged}) == 1
    assert one.task_id == other.task_id


def test_a_key_belongs_to_its_namespace(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        staged = [
            shop.outbox.stage(session, shop.charge.s(number), dispatch_key="k", namespace=namespace)
            for number, namespace in enumerate(("default", "acme", "globex"))
        ]
    assert all(one.created for one in staged)


def test_a_task_id_is_the_key_by_default(lite_shop: Shop) -> None:
    shop = lite_shop
    with shop.maker() as session, session.begin():
        first = shop.outbox.stage(session, shop.charge.s(1).set(task_id="mine"))
        again = shop.outbox.stage(session, shop.charge.s(1).set(task_id="mine"))
    assert (first.dispatch_key, again.created) == ("mine", False)


def test_workflow_run_and_ordinal_make_a_key(shop: Shop) -> None:
    def fan_out(run: str) -> list[Any]:
        with shop.maker() as session, session.begin():
            signatures = (shop.charge.s(number) for number in range(5))
            return shop.outbox.stage_many(session, signatures, workflow_id="w", run_id=run)

    first, again, new = fan_out("r1"), fan_out("r1"), fan_out("r2")
    assert [one.task_id for one in again] == [one.task_id for one in first]
    assert not any(one.created for one in again)
    assert all(one.created for one in new)
    assert [(row["workflow_id"], row["run_id"], row["ordinal"]) for row in shop.rows()] == [
        ("w", run, ordinal) for run in ("r1", "r2") for ordinal in range(5)
    ]


def test_an_ordinal_of_one_stage_is_that_of_a_bulk(lite_shop: Shop) -> None:
    shop = lite_shop
    with shop.maker() as session, session.begin():
        shop.outbox.stage_many(session, [shop.charge.s(0), shop.charge.s(1)], workflow_id="w")
        assert not shop.outbox.stage(session, shop.charge.s(1), workflow_id="w", ordinal=1).created
        assert shop.outbox.stage(session, shop.charge.s(2), workflow_id="w", ordinal=2).created


part = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)


@given(
    one=st.tuples(part, st.none() | part, st.integers(0, 99)),
    other=st.tuples(part, st.none() | part, st.integers(0, 99)),
)
def test_keys_of_two_places_never_meet(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    def key(place: tuple[Any, ...]) -> str:
        workflow, run, ordinal = place
        return Options(workflow_id=workflow, run_id=run, ordinal=ordinal).key_of("t", ordinal)

    assert (key(one) == key(other)) == (one == other)
    assert unquote(key(one).split("/")[0]) == one[0]


def test_a_bulk_with_the_same_key_twice_keeps_the_first(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        one = shop.charge.s(1).set(task_id="t")
        staged = shop.outbox.stage_many(session, [one, one, shop.charge.s(2)])
    assert [each.created for each in staged] == [True, False, True]


def test_a_bulk_in_conflict_leaves_nothing_of_itself(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        shop.outbox.stage(session, shop.charge.s(99).set(task_id="t5"))
        signatures = [shop.charge.s(number).set(task_id=f"t{number}") for number in range(10)]
        with pytest.raises(DispatchKeyConflict):
            shop.outbox.stage_many(session, signatures)
    assert [row["task_id"] for row in shop.rows()] == ["t5"]


def test_twenty_stagers_at_once_make_one_row(pg_shop: Shop) -> None:
    shop, staged, errors = pg_shop, [], []
    ready = threading.Barrier(20)
    engine = sa.create_engine(shop.url, pool_size=20)

    def stage() -> None:
        try:
            with engine.connect() as connection, connection.begin():
                connection.exec_driver_sql("SELECT 1")
                ready.wait(30)
                staged.append(shop.outbox.stage(connection, shop.charge.s(1), dispatch_key="k", namespace="acme"))
        except Exception as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=stage) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    engine.dispose()
    assert errors == []
    assert len(staged) == 20
    assert sum(one.created for one in staged) == 1
    assert {one.task_id for one in staged} == {shop.row()["task_id"]}


@pytest.mark.parametrize("commits", [True, False], ids=["that commits", "that rolls back"])
def test_a_key_in_an_open_transaction_is_waited_for(shop: Shop, commits: bool) -> None:
    staged, waiting = [], threading.Event()

    def stage() -> None:
        with shop.maker() as session, session.begin():
            waiting.set()
            staged.append(shop.outbox.stage(session, shop.charge.s(1), dispatch_key="k"))

    second = threading.Thread(target=stage)
    with shop.maker() as session:
        first = shop.outbox.stage(session, shop.charge.s(1), dispatch_key="k")
        second.start()
        waiting.wait(10)
        second.join(0.2)
        assert staged == []
        if commits:
            session.commit()
        else:
            session.rollback()
    second.join(30)
    (one,) = staged
    assert one.created is not commits
    assert (one.task_id == first.task_id) is commits
    assert one.task_id == shop.row()["task_id"]


def test_many_thousands_at_once(shop: Shop) -> None:
    """More rows than a statement may have parameters; and none after an error."""
    with shop.maker() as session, session.begin():
        staged = shop.outbox.stage_many(session, (shop.anything.s(number) for number in range(20_000)))
    assert len({one.task_id for one in staged}) == 20_000
    count = sa.select(sa.func.count()).select_from(shop.outbox.tables.row)
    with shop.engine.connect() as connection:
        assert connection.execute(count).scalar() == 20_000
    with shop.maker() as session:
        shop.outbox.stage_many(session, (shop.anything.s(number) for number in range(2_000)))
        session.rollback()
    with shop.engine.connect() as connection:
        assert connection.execute(count).scalar() == 20_000
