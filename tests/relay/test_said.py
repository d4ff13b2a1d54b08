"""What operators say about namespaces, in the sweeps of a relay: where messages go, what waits, what is told of it."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from outbox_relay.core.beacon import Beacon
from outbox_relay.core.namespaces import PlacementKind, Scope
from outbox_relay.core.settlement import Delivery, Settlement
from outbox_relay.core.wire import Reporter, encode_settlements
from outbox_relay.publish.envelope import report
from tests.relay.test_service import running
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_relay.core.row import Staged
    from outbox_relay.relay.sweep import Sweep
    from tests.relay.conftest import Bench, OpenBench

WORKER = Reporter(uuid.uuid4(), "w@test")
AT_ONCE: dict[str, Any] = {"outbox_cache_ttl": 0.001}


@pytest.fixture(params=["postgresql-rabbitmq", "sqlite-embedded"])
def shop(request: pytest.FixtureRequest, open_bench: OpenBench) -> Bench:
    """A relay on both ends of what is supported, which knows at once what is said."""
    database, broker = str(request.param).split("-")
    urls = {"postgresql": "postgres_url"}.get(database, f"{database}_url"), f"{broker}_url"
    return open_bench(*(request.getfixturevalue(url) for url in urls), **AT_ONCE)


def sweep_all(sweep: Sweep) -> None:
    while sweep.tick() == 0:
        pass


def queues(bench: Bench, staged: Sequence[Staged]) -> Counter[str | None]:
    return Counter(bench.row(one).published_to for one in staged)


def worker(bench: Bench, *served: str) -> None:
    beacon = Beacon(instance=uuid.uuid4(), hostname="w", pool="prefork", queues=served)
    bench.outbox.store.beacon(beacon, run_lease=timedelta(minutes=1), message_expires=True)


def finish(bench: Bench, staged: Sequence[Staged]) -> None:
    settlements = [
        Settlement.done(Delivery(row.id, row.attempt, row.claim_token, "q"), row.task_id)
        for row in map(bench.row, staged)
        if row.status.value == "claimed"
    ]
    bench.outbox.store.settle(
        settlements, bench.parts.settings.policy, message_life=None, queue_lease=timedelta(hours=1)
    )


def test_messages_go_by_the_namespace_and_node_of_their_row(shop: Bench) -> None:
    staged = [
        *shop.stage(1),
        *shop.stage(1, namespace="acme"),
        *shop.stage(1, namespace="acme", node="box-7"),
        *shop.stage(1, node="box-7"),
    ]
    sweep_all(shop.sweep())
    assert [shop.row(one).published_to for one in staged] == ["shop", "acme:shop", "acme:shop@box-7", "shop@box-7"]


def test_preferred_nodes_share_the_messages_and_the_pool_takes_them_where_none_lives(shop: Bench) -> None:
    shop.outbox.store.governing.set_namespace(
        "acme", create=True, placement=PlacementKind.PREFER, nodes=("n1", "n2", "n3")
    )
    first = shop.stage(2, namespace="acme")
    sweep = shop.sweep()
    sweep_all(sweep)
    assert queues(shop, first) == {"acme:shop": 2}
    worker(shop, "acme:shop@n1", "acme:shop@n3")
    second = shop.stage(6, namespace="acme")
    sweep_all(sweep)
    assert queues(shop, second) == {"acme:shop@n1": 3, "acme:shop@n3": 3}
    assert {shop.row(one).node for one in second} == {None}


def test_a_pinned_namespace_waits_for_its_nodes_and_says_so_once(shop: Bench) -> None:
    shop.outbox.store.governing.set_namespace("acme", create=True, placement=PlacementKind.PINNED, nodes=("n1",))
    worker(shop, "acme:shop", "acme:shop@n2")
    staged = shop.stage(3, namespace="acme")
    (other,) = shop.stage(1)
    sweep = shop.sweep()
    for _ in range(3):
        sweep_all(sweep)
    assert queues(shop, [*staged, other]) == {None: 3, "shop": 1}
    assert {(shop.row(one).status.value, shop.row(one).attempt) for one in staged} == {("pending", 0)}
    worker(shop, "acme:shop@n1")
    sweep_all(sweep)
    assert queues(shop, staged) == {"acme:shop@n1": 3}
    assert shop.said("placement.waits") == [{"names": "acme"}]
    assert shop.said("placement.served") == [{"names": "acme"}]


def test_a_pause_holds_what_is_pending_and_a_resume_lets_the_next_sweep_take_it(shop: Bench) -> None:
    governing = shop.outbox.store.governing
    sweep = shop.sweep()
    running = shop.stage(1, namespace="acme", workflow_id="w1")
    sweep_all(sweep)
    for scope, value in ((Scope.NAMESPACE, "acme"), (Scope.WORKFLOW, "w2"), (Scope.TASK, "shop.charge")):
        governing.pause(scope, value)
        staged = shop.stage(2, namespace="acme", workflow_id="w2", run_id=scope.value)
        for _ in range(3):
            sweep_all(sweep)
        assert queues(shop, staged) == {None: 2}
        governing.resume(scope, value)
        sweep_all(sweep)
        assert queues(shop, staged) == {"acme:shop": 2}
    finish(shop, running)
    assert shop.row(running[0]).status.value == "done"
    assert [said["names"] for said in shop.said("hold.began")] == ["acme", "w2", "shop.charge"]
    assert [said["names"] for said in shop.said("hold.ended")] == ["acme", "w2", "shop.charge"]


def test_a_quota_holds_rows_back_and_lets_them_go_on_as_others_end_and_says_so_once(shop: Bench) -> None:
    shop.outbox.store.governing.set_namespace("acme", create=True, max_in_flight=2)
    staged = shop.stage(6, namespace="acme")
    sweep = shop.sweep()
    delays = set()
    for _ in range(3):
        for _ in range(4):
            delays.add(sweep.tick())
        in_flight = [one for one in staged if shop.row(one).status.value == "claimed"]
        assert len(in_flight) == 2
        finish(shop, in_flight)
    assert {shop.row(one).status.value for one in staged} == {"done"}
    assert delays == {shop.parts.settings.poll_interval.total_seconds()}  # having no room is no reason to spin
    assert shop.said("quota.reached") == [{"names": "acme"}]


def test_held_and_waiting_rows_do_not_keep_an_idle_relay_busy(shop: Bench) -> None:
    governing = shop.outbox.store.governing
    governing.set_namespace("acme", create=True, placement=PlacementKind.PINNED, nodes=("n1",))
    governing.pause(Scope.WORKFLOW, "w1")
    shop.stage(5, namespace="acme")
    shop.stage(5, workflow_id="w1")
    sweep = shop.sweep()
    sweep.tick()
    poll = shop.parts.settings.poll_interval.total_seconds()
    assert [sweep.tick() for _ in range(5)] == [poll] * 5


def test_nothing_is_published_where_what_is_said_cannot_be_understood(bench: Bench) -> None:
    staged = bench.stage(2)
    hold = bench.outbox.tables.hold
    with bench.engine.begin() as connection:
        connection.execute(sa.insert(hold).values(scope="galaxy", value="x", created_at=bench.outbox.store.now()))
    sweep = bench.sweep()
    poll = bench.parts.settings.poll_interval.total_seconds()
    assert [sweep.tick() for _ in range(3)] == [poll] * 3
    assert queues(bench, staged) == {None: 2}
    (told,) = bench.said("hold.unreadable")
    assert told["reason"].startswith("a hold cannot be understood")
    with bench.engine.begin() as connection:
        connection.execute(sa.delete(hold))
    eventually(lambda: sweep.tick() == 0 or None not in queues(bench, staged), 10)


def test_a_report_makes_room_long_before_the_next_poll(
    open_bench: OpenBench, sqlite_url: str, embedded_url: str
) -> None:
    bench = open_bench(sqlite_url, embedded_url, outbox_poll_interval=60)
    bench.outbox.store.governing.set_namespace("acme", create=True, max_in_flight=1)
    staged = bench.stage(3, namespace="acme")

    def in_flight() -> list[Any]:
        rows = [row for row in map(bench.row, staged) if row.status.value == "claimed"]
        assert len(rows) <= 1
        return [row for row in rows if row.published_at is not None]

    with running(bench):
        for done_before in range(3):
            (row,) = eventually(in_flight, 20)
            delivery = Delivery(row.id, row.attempt, row.claim_token, bench.parts.queues.settlements.name)
            body = encode_settlements(WORKER, [Settlement.done(delivery, row.task_id)])
            bench.publisher.publish([report(0, bench.parts.queues.settlements, body)], timeout=5)
            eventually(lambda: bench.outbox.store.counts()["done"] == done_before + 1, 20)  # noqa: B023 - waits here
