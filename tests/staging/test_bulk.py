"""Many in one call: lazily, in order, with flat memory; and nothing of a call that fails stays."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from celery import chain, group

from outbox_relay import DispatchKeyConflict, StagingError
from outbox_relay.publish.fields import decode_fields
from outbox_relay.staging.rows import new_row
from outbox_relay.store.staging import PAGE
from tests.staging.shop import BoomError, Order, Shop, opened
from tests.store.bench import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

MORE_THAN_TWO_PAGES = 2 * PAGE + 500


def count(shop: Shop, session: Session | None = None) -> int:
    """How many rows there are, committed ones or those that a session sees."""
    statement = sa.select(sa.func.count()).select_from(shop.outbox.tables.row)
    if session is not None:
        return int(session.connection().execute(statement).scalar_one())
    with shop.engine.connect() as connection:
        return int(connection.execute(statement).scalar_one())


# -- as they come ---------------------------------------------------------------------------------------------------


def test_signatures_are_taken_a_page_at_a_time(shop: Shop) -> None:
    seen = []

    def signatures(session: Session) -> Iterator[Any]:
        for number in range(MORE_THAN_TWO_PAGES):
            if number % PAGE == 0:
                seen.append(count(shop, session))
            yield shop.anything.s(number)

    with shop.maker() as session, session.begin():
        staged = shop.outbox.stage_many(session, signatures(session))
    assert seen == [0, PAGE, 2 * PAGE]
    assert len({one.task_id for one in staged}) == count(shop) == MORE_THAN_TWO_PAGES


def test_what_comes_back_and_what_is_stored_is_in_the_order_given(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        staged = shop.outbox.stage_many(session, (shop.charge.s(number) for number in range(PAGE + 10)))
    rows = shop.rows()
    assert [row["task_id"] for row in rows] == [one.task_id for one in staged]
    assert [row["id"] for row in rows] == [one.row_id for one in staged]
    assert all(row["body"].startswith(b"[[%d], {}" % number) for number, row in enumerate(rows))


def test_signatures_may_come_from_the_same_session(shop: Shop) -> None:
    with shop.maker() as session, session.begin():
        session.add_all(Order(name=f"order {number}") for number in range(PAGE + 10))
    with shop.maker() as session, session.begin():
        orders = session.scalars(sa.select(Order).order_by(Order.id).execution_options(yield_per=100))
        staged = shop.outbox.stage_many(session, (shop.charge.s(order.id) for order in orders))
    assert len(staged) == count(shop) == PAGE + 10


def test_celery_builds_the_first_of_many_messages_that_are_alike(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def counting(*args: Any, **options: Any) -> Any:
        built.append(args)
        return new_row(*args, **options)

    monkeypatch.setattr("outbox_relay.staging.stage.new_row", counting)
    with shop.maker() as session, session.begin():
        shop.outbox.stage_many(session, (shop.charge.s(number) for number in range(2 * PAGE)))
        shop.outbox.stage(session, shop.charge.s(1))
    assert len(built) == 1


def test_nothing_to_stage_asks_nothing(shop: Shop) -> None:
    with shop.maker() as session, session.begin(), Statements(shop.engine) as statements:
        assert shop.outbox.stage_many(session, iter(())) == []
    assert statements.seen == []


def test_signatures_may_come_from_a_cursor_of_the_same_psycopg_connection_but_not_from_a_stream(pg_shop: Shop) -> None:
    dsn = pg_shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    numbers = f"SELECT generate_series(1, {PAGE + 10})"
    with psycopg.connect(dsn) as connection:
        with connection.cursor(name="server_side") as cursor:
            staged = pg_shop.outbox.stage_many(
                connection, (pg_shop.charge.s(number) for (number,) in cursor.execute(numbers))
            )
        stream = connection.cursor().stream(numbers)
        with pytest.raises(StagingError, match="stream"):
            pg_shop.outbox.stage_many(connection, (pg_shop.charge.s(number) for (number,) in stream))
        stream.close()
    assert len(staged) == count(pg_shop) == PAGE + 10


def test_a_hundred_thousand_rows_take_no_more_memory_than_what_is_returned(pg_shop: Shop) -> None:
    shop, sizes = pg_shop, []
    page_bytes = 4096

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page_bytes

    def signatures() -> Iterator[Any]:
        for number in range(100_000):
            if number % 5_000 == 0:
                sizes.append(resident())
            yield shop.charge.s(number)

    gc.collect()
    with shop.maker() as session, session.begin():
        staged = shop.outbox.stage_many(session, signatures())
    sizes.append(resident())
    assert count(shop) == len(staged) == 100_000
    # What is returned takes about 200 bytes a row; the rows themselves would take a kilobyte and a half.
    assert max(sizes) - sizes[1] < 60 * 2**20, [size >> 20 for size in sizes]


def test_a_group_and_other_canvases_are_staged_whole(shop: Shop) -> None:
    given = [
        shop.charge.s(1),
        group(shop.charge.s(number) for number in range(PAGE + 5)),
        chain(shop.charge.s(2), shop.charge.s(3)),
        shop.anything.s(4).set(countdown=60),
    ]
    with shop.maker() as session, session.begin():
        staged = shop.outbox.stage_many(session, given, workflow_id="w")
    rows = shop.rows()
    assert len(staged) == len(rows) == PAGE + 8
    assert sorted(row["ordinal"] for row in rows) == list(range(PAGE + 8))
    assert [one.dispatch_key for one in staged] == [f"w//{ordinal}" for ordinal in range(PAGE + 8)]


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"priority": 7, "queue": "slow"}, {"namespace": "acme", "max_attempts": 3}),
    ({"countdown": 60, "expires": 600}, {"settle_on": "publish", "node": "box-7"}),
    ({"serializer": "pickle", "headers": {"x": 1}}, {"task_queue": "other", "workflow_id": "w", "run_id": "r"}),
]


@pytest.mark.parametrize("watched", [False, True], ids=["on the driver's cursor", "with a tracer"])
@pytest.mark.parametrize(("signed", "options"), OPTIONS, ids=str)
def test_a_row_is_the_same_alone_among_its_like_and_among_others(
    shop: Shop, signed: dict[str, Any], options: dict[str, Any], watched: bool
) -> None:
    if watched:
        sa.event.listen(shop.engine, "before_cursor_execute", lambda *_: None)
    ordinal = {"ordinal": 0} if "workflow_id" in options else {}
    one = {name: shop.charge.s(1).set(task_id=name, **signed) for name in ("alone", "alike", "among")}
    with shop.maker() as session, session.begin():
        shop.outbox.stage(session, one["alone"], **{**options, **ordinal})
        for run, many in (
            ("like", [one["alike"], shop.charge.s(2).set(**signed), shop.charge.s(3).set(**signed)]),
            ("others", [one["among"], shop.anything.s(4), shop.anything.s(5).set(countdown=1)]),
        ):
            shop.outbox.stage_many(session, many, **({**options, "run_id": run} if ordinal else options))
    rows = {row["task_id"]: storable(row) for row in shop.rows()}
    assert rows["alone"] == rows["alike"] == rows["among"]


def storable(row: sa.RowMapping) -> dict[str, Any]:
    """A row without what is another in each: its id and key, and the moments, which are told to a few seconds."""
    stored = {name: value for name, value in row.items() if name not in {"id", "dispatch_key", "run_id", "task_id"}}
    created_at = stored.pop("created_at")
    for name in ("visible_after", "expires_at"):
        if stored[name] is not None:
            stored[name] = round((stored[name] - created_at).total_seconds() / 30)
    for name in ("headers", "properties"):
        fields = decode_fields(stored[name].replace(row["task_id"].encode(), b"t"))
        stored[name] = {**fields, "expires": bool(fields.get("expires")), "eta": bool(fields.get("eta"))}
    return stored


# -- all or nothing ------------------------------------------------------------------------------------------------


def boom(shop: Shop) -> Iterator[Any]:
    raise BoomError


def unfit(shop: Shop) -> Iterator[Any]:
    yield shop.charge.s()


def unencodable(shop: Shop) -> Iterator[Any]:
    yield shop.anything.s(object())


def conflicting(shop: Shop) -> Iterator[Any]:
    yield shop.charge.s(2).set(task_id="taken")


def no_signature(shop: Shop) -> Iterator[Any]:
    yield "shop.charge"


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (boom, BoomError),
        (unfit, TypeError),
        (unencodable, StagingError),
        (conflicting, DispatchKeyConflict),
        (no_signature, StagingError),
    ],
)
@pytest.mark.parametrize("before", [3, MORE_THAN_TWO_PAGES])
def test_of_a_call_that_fails_nothing_stays_and_the_transaction_goes_on(
    shop: Shop, end: Callable[[Shop], Iterator[Any]], error: type[Exception], before: int
) -> None:
    def signatures() -> Iterator[Any]:
        yield from (shop.charge.s(number) for number in range(before))
        yield from end(shop)

    with shop.maker() as session, session.begin():
        session.add(Order(name="kept"))
        shop.outbox.stage(session, shop.charge.s(1).set(task_id="taken"))
        with pytest.raises(error):
            shop.outbox.stage_many(session, signatures())
        assert count(shop, session) == 1
        shop.outbox.stage(session, shop.charge.s(9).set(task_id="after"))
    assert {row["task_id"] for row in shop.rows()} == {"taken", "after"}
    assert shop.orders() == {"kept"}


def test_an_error_of_the_database_is_raised_as_it_is(pg_shop: Shop) -> None:
    shop = pg_shop
    with shop.maker() as holder, holder.begin():
        shop.outbox.stage(holder, shop.charge.s(0).set(task_id="held"))
        with shop.maker() as session:
            session.execute(sa.text("SET LOCAL lock_timeout = '100ms'"))
            given = [*(shop.charge.s(number) for number in range(PAGE)), shop.charge.s(0).set(task_id="held")]
            with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
                shop.outbox.stage_many(session, given)
            session.rollback()
    assert [row["task_id"] for row in shop.rows()] == ["held"]


def test_what_gives_the_signatures_must_not_end_the_transaction(shop: Shop) -> None:
    def signatures(session: Session) -> Iterator[Any]:
        for number in range(MORE_THAN_TWO_PAGES):
            if number == PAGE:
                session.commit()
            yield shop.charge.s(number)

    with shop.maker() as session:
        with pytest.raises(StagingError, match="must not end it"):
            shop.outbox.stage_many(session, signatures(session))
        session.rollback()
    assert count(shop) == PAGE  # it was told to commit those


# -- keys ------------------------------------------------------------------------------------------------------------


def test_a_key_twice_in_a_call_keeps_the_first_however_far_apart(shop: Shop) -> None:
    def signatures() -> Iterator[Any]:
        yield shop.charge.s(1).set(task_id="t")
        yield from (shop.charge.s(number) for number in range(PAGE))
        yield shop.charge.s(1).set(task_id="t")

    with shop.maker() as session, session.begin():
        staged = shop.outbox.stage_many(session, signatures())
    assert (staged[0].task_id, staged[0].created) == ("t", True)
    assert (staged[-1].task_id, staged[-1].created, staged[-1].row_id) == ("t", False, staged[0].row_id)
    assert len(staged) == PAGE + 2
    assert count(shop) == PAGE + 1


def both(shop: Shop, *givens: list[Any], **options: Any) -> list[int]:
    """How many rows each of two transactions made that staged at the same time."""
    start = threading.Barrier(len(givens))

    def stage(given: list[Any]) -> int:
        with shop.maker() as session, session.begin():
            session.connection()
            start.wait(30)
            return sum(one.created for one in shop.outbox.stage_many(session, given, **options))

    with ThreadPoolExecutor(len(givens)) as pool:
        return list(pool.map(stage, givens))


def test_bulk_stagers_of_the_same_ids_in_opposite_order_do_not_wait_in_a_circle(pg_shop: Shop) -> None:
    many = [pg_shop.charge.s(number).set(task_id=f"t{number}") for number in range(MORE_THAN_TWO_PAGES)]
    created = both(pg_shop, many, many[::-1])
    assert sum(created) == count(pg_shop) == MORE_THAN_TWO_PAGES


def test_bulk_stagers_of_one_workflow_do_not_wait_in_a_circle(pg_shop: Shop) -> None:
    def many() -> list[Any]:
        return [pg_shop.charge.s(number) for number in range(MORE_THAN_TWO_PAGES)]

    created = both(pg_shop, many(), [group(many())], workflow_id="w", run_id="r")  # the two are cut in other pages
    assert sorted(created) == [0, MORE_THAN_TWO_PAGES]
    assert count(pg_shop) == MORE_THAN_TWO_PAGES


def test_a_namespace_that_is_closed_refuses_all_of_a_call(sqlite_url: str) -> None:
    for shop in opened(sqlite_url, outbox_namespaces="closed"):
        with shop.maker() as session, session.begin(), pytest.raises(StagingError, match="not known"):
            shop.outbox.stage_many(session, [shop.charge.s(1)], namespace="acme")
        assert count(shop) == 0
