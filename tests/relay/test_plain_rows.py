"""Rows that plain SQL inserted, with nothing of Celery's in them, are rows like any other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from kombu import Connection

from outbox_relay.core.namespaces import PlacementKind
from tests.relay.test_sweep import sweep_all

if TYPE_CHECKING:
    from tests.relay.conftest import Bench, OpenBench

INSERT = "INSERT INTO outbox_row (namespace, task, args, kwargs) VALUES (:namespace, :task, :args, :kwargs)"


@pytest.fixture
def bench(open_bench: OpenBench, database_url: str, embedded_url: str) -> Bench:
    bench = open_bench(database_url, embedded_url)

    bench.outbox.app.conf.task_routes = {"shop.charge": {"queue": "money", "priority": 3}}

    @bench.outbox.app.task(name="shop.charge", shared=False)
    def charge(order: int, amount: int = 0) -> None: ...

    return bench


def insert(bench: Bench, **columns: Any) -> None:
    given = {"namespace": "default", "task": "shop.charge", "args": None, "kwargs": None, **columns}
    with bench.engine.begin() as connection:
        connection.execute(sa.text(INSERT), given)
    bench.outbox.store.governing.register_strangers()  # as relays do now and then


def rows(bench: Bench) -> list[Any]:
    return sorted(bench.outbox.store.ls(), key=lambda row: row.id)


def received(bench: Bench, queue: str) -> Any:
    with Connection(bench.outbox.app.conf.broker_url) as connection:
        message = connection.default_channel.basic_get(queue, no_ack=True)
        assert message is not None
        return message


def test_its_message_is_what_a_call_of_the_task_would_have_sent(bench: Bench) -> None:
    insert(bench, args="[42]", kwargs='{"amount": 3}')
    sweep_all(bench.sweep())
    (row,) = rows(bench)
    assert (row.status.value, row.published_to, row.task_queue) == ("claimed", "money", "money")
    message = received(bench, "money")
    assert json.loads(message.body)[:2] == [[42], {"amount": 3}]
    assert message.headers["task"] == "shop.charge"
    assert message.headers["id"] == row.task_id
    assert message.headers["x-outbox"].startswith(f"1;{row.id};0;")
    assert message.properties["priority"] == 3


def test_it_needs_no_arguments_and_takes_a_task_that_the_relay_does_not_know(bench: Bench) -> None:
    insert(bench, task="billing.close_month")
    sweep_all(bench.sweep())
    assert json.loads(received(bench, "shop").body)[:2] == [[], {}]


def test_it_goes_to_the_queue_of_its_namespace(bench: Bench) -> None:
    insert(bench, namespace="acme", args="[1]")
    sweep_all(bench.sweep())
    assert [row.published_to for row in rows(bench)] == ["acme:money"]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"args": "[1"}, "its args are no JSON"),
        ({"args": '{"order": 1}'}, "its args are a dict, where an array is needed"),
        ({"kwargs": "[]"}, "its kwargs are a list, where an object is needed"),
        ({"args": "[1, 2, 3]"}, "TypeError: .*takes from 1 to 2 positional arguments"),
        ({"args": "[1]", "namespace": "not a name"}, "namespace 'not a name': a name has"),
    ],
)
def test_a_bad_one_fails_with_its_reason_and_holds_nobody_up(
    bench: Bench, columns: dict[str, Any], reason: str
) -> None:
    insert(bench, **columns)
    insert(bench, args="[7]")
    sweep_all(bench.sweep())
    bad, good = rows(bench)
    assert (bad.status.value, good.status.value) == ("failed", "claimed")
    assert good.published_to == "money"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(bad.error)


def test_its_message_is_made_once_and_stays(bench: Bench) -> None:
    insert(bench, args="[42]")
    sweep = bench.sweep()
    sweep_all(sweep)
    first = received(bench, "money")
    row = bench.outbox.tables.row
    with bench.engine.begin() as connection:
        made = connection.execute(sa.select(row.c.body, row.c.content_type, row.c.args)).one()
        connection.execute(sa.update(row).values(status=sa.literal_column("'pending'"), claim_token=None))
    assert (made.content_type, made.args) == ("application/json", None)
    bench.outbox.store.reset_watermark()
    sweep_all(sweep)
    assert received(bench, "money").body == first.body


def test_it_waits_for_the_nodes_that_its_namespace_is_pinned_to(bench: Bench) -> None:
    pinned = {"placement": PlacementKind.PINNED, "nodes": ("box-7",)}
    bench.outbox.store.governing.set_namespace("acme", create=True, **pinned)
    insert(bench, namespace="acme", args="[1]")
    sweep = bench.sweep()
    for _ in range(5):
        sweep.tick()
    assert [(row.status.value, row.task_queue) for row in rows(bench)] == [("pending", "money")]


@pytest.mark.parametrize(
    "columns",
    [
        {"task_queue": b"money"},
        {"headers": "{}", "body": "text", "content_type": "application/json", "content_encoding": "utf-8"},
        {"namespace": b"acme"},
    ],
    ids=["queue", "message", "namespace"],
)
def test_bytes_and_texts_where_sqlite_should_have_refused_them_hold_nobody_up(
    open_bench: OpenBench, sqlite_url: str, embedded_url: str, columns: dict[str, Any]
) -> None:
    bench = open_bench(sqlite_url, embedded_url)
    given = {"task": "shop.charge", **columns}
    names, places = ", ".join(given), ", ".join("?" * len(given))
    sweep = bench.sweep()
    bench.stage()
    sweep_all(sweep)  # the form of an ordinary message is known from now on
    with bench.engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO outbox_row ({names}) VALUES ({places})", tuple(given.values()))
    (good,) = bench.stage()
    bench.outbox.store.governing.register_strangers()
    sweep_all(sweep)
    assert bench.row(good).published_to == "shop"
    with bench.engine.connect() as connection:
        bad = connection.exec_driver_sql("SELECT status, error FROM outbox_row WHERE id = 2").one()
    waits = "namespace" in columns  # nobody can register that one
    assert bad.status == ("pending" if waits else "failed"), bad.error
