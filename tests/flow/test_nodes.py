"""Where rows run: on nodes that they name or that their namespace is placed on, the whole way."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from kombu import Connection

from outbox_relay.core.namespaces import PlacementKind
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from outbox_relay.core.processes import WorkerInfo
    from outbox_relay.core.row import Staged
    from tests.flow.conftest import OpenShop
    from tests.flow.stand import Shop
    from tests.support.servers import RabbitMQ

SLOWLY = {"worker_prefetch_multiplier": 1, "task_acks_late": True, "outbox_queue_lease": 60}


def place(shop: Shop, namespace: str, kind: PlacementKind, *nodes: str) -> None:
    shop.outbox.store.governing.set_namespace(namespace, create=True, placement=kind, nodes=nodes)


def serving(shop: Shop, *queues: str, within: float = 30) -> WorkerInfo:
    """Wait until a live worker consumes these queues."""

    def found() -> WorkerInfo | None:
        workers = shop.outbox.store.workers(shop.outbox.settings.worker_ttl)
        return next((one for one in workers if one.live and set(queues) <= set(one.queues)), None)

    worker = eventually(found, within, what=f"a worker of {', '.join(queues)}")
    assert worker is not None
    return worker


def busy(shop: Shop, count: int, within: float = 20) -> tuple[str, list[Staged]]:
    """Let the one process of a node's worker run a task, and rows wait in the node's queue behind it.

    Returns the gate that the task waits for, and the rows.
    """
    queue = f"acme:{shop.conf['task_default_queue']}@box-7"
    gates: list[str] = []

    def runs_there() -> bool:
        """Sweeps may not have seen the worker's beacon yet: they ask now and then."""
        gates.append(f"gate{len(gates)}")
        running = shop.stage("wait", gates[-1], namespace="acme")
        eventually(lambda: shop.runs(running), within)
        if shop.row(running).published_to == queue:
            return True
        shop.open_gate(gates[-1])
        return False

    eventually(runs_there, within, every=0.2)
    waiting = shop.stage_many(count, namespace="acme")
    eventually(lambda: shop.row(waiting[-1]).published_to == queue, within, what="rows for the node")
    return gates[-1], waiting


def done(shop: Shop, *staged: Staged, within: float = 30) -> None:
    """Wait until these rows are done, each after one run."""

    row = shop.outbox.tables.row
    query = sa.select(sa.func.count()).where(row.c.id.in_([one.row_id for one in staged]), row.c.status != "done")

    def none_is_left() -> bool:
        with shop.engine.connect() as connection:
            return connection.execute(query).scalar_one() == 0

    eventually(none_is_left, within, every=0.05)
    runs = Counter(shop.runs())
    assert {runs[one.task_id] for one in staged} == {1}


def test_rows_run_where_they_are_placed(open_shop: OpenShop) -> None:
    """Pool, node of the row, preferred node, pinned node; workers of all namespaces and of one; nothing is written."""
    shop = open_shop()
    relay = shop.relay()
    pool = shop.worker("-c", "1", wait=False)
    some = "default,acme,globex,initech"
    shop.worker("-c", "1", "--outbox-node", "box-7", "--outbox-namespaces", some, wait=False)
    place(shop, "acme", PlacementKind.PREFER, "box-7")
    place(shop, "initech", PlacementKind.PINNED, "box-8")
    serving(shop, "shop", "acme:shop@box-7")

    unplaced, plain = shop.stage("charge", namespace="globex"), shop.stage("charge")
    preferred = shop.stage_many(5, namespace="acme")
    named = [shop.stage("charge", namespace=namespace, node="box-7") for namespace in ("default", "globex", "acme")]
    nowhere = shop.stage("charge", namespace="acme", node="box-9")
    pinned = shop.stage_many(3, namespace="initech")
    conflict = shop.stage("charge", namespace="initech", node="box-7")
    done(shop, unplaced, plain, *preferred, *named)
    eventually(lambda: shop.waiting("acme:shop@box-9") == 1, 20, what="a row that waits for a node of its own choice")
    assert shop.status(nowhere) == "claimed"
    assert not shop.runs(nowhere)

    # What is pinned waits, and spends nothing, until its node is there: a worker for that namespace alone.
    assert [shop.status(one) for one in (*pinned, conflict)] == ["pending"] * 4
    shop.worker("-c", "1", "--outbox-node", "box-8", "--outbox-namespaces", "initech", wait=False)
    worker = serving(shop, "initech:shop@box-8")
    assert set(worker.queues) == {"initech:shop", "initech:shop@box-8"}
    done(shop, *pinned)
    assert [(row.attempt, row.failures, row.rearms) for row in map(shop.row, pinned)] == [(0, 0, 0)] * 3
    assert shop.status(conflict) == "pending"
    everything = [unplaced, plain, *preferred, *named, nowhere, *pinned, conflict]
    assert [row.node for row in map(shop.row, everything)] == [
        *[None] * 7, *["box-7"] * 3, "box-9", *[None] * 3, "box-7"
    ]  # fmt: skip

    # A namespace is pinned while its messages wait for the pool: they come back, and wait in the outbox.
    pool.end()
    early = shop.stage_many(3, namespace="hooli")
    eventually(lambda: all(shop.row(one).published_to == "hooli:shop" for one in early), 20)
    place(shop, "hooli", PlacementKind.PINNED, "box-9")
    eventually(lambda: [shop.status(one) for one in early] == ["pending"] * 3, 20, what="rows taken back")
    assert shop.waiting("hooli:shop") == 0
    assert relay.says("took back 3 rows that waited in queue hooli:shop")


@pytest.mark.parametrize(
    ("stack", "how"),
    [
        ("postgresql-rabbitmq", signal.SIGTERM),
        ("postgresql-redis", signal.SIGKILL),
        ("sqlite-embedded", signal.SIGKILL),
    ],
)
def test_rows_that_wait_for_a_preferred_node_run_in_the_pool_when_it_ends(
    open_shop: OpenShop, stack: str, how: signal.Signals
) -> None:
    shop = open_shop(stack, **SLOWLY)
    queue = shop.conf["task_default_queue"]
    place(shop, "acme", PlacementKind.PREFER, "box-7")
    relay = shop.relay()
    node = shop.worker("-c", "1", "--outbox-node", "box-7", wait=False)
    serving(shop, f"acme:{queue}@box-7")
    gate, waiting = busy(shop, 10)
    pool = shop.worker("-c", "1", wait=False)
    eventually(lambda: pool.says("ready."), 30)
    node.send(how)
    shop.open_gate(gate)
    node.wait()
    done(shop, *waiting, within=40)
    assert relay.says("took back")
    rows = [shop.row(one) for one in waiting]
    assert [(row.attempt, row.failures, row.node) for row in rows] == [(0, 0, None)] * 10


@pytest.mark.parametrize("stack", ["postgresql-rabbitmq", "postgresql-redis"])
def test_a_node_that_comes_back_while_two_relays_take_back_costs_no_row_and_no_second_run(
    open_shop: OpenShop, stack: str
) -> None:
    shop = open_shop(stack, **SLOWLY)
    place(shop, "acme", PlacementKind.PREFER, "box-7")
    relays = [shop.relay(wait=False) for _ in range(2)]
    node = shop.worker("-c", "1", "--outbox-node", "box-7", wait=False)
    serving(shop, f"acme:{shop.conf['task_default_queue']}@box-7")
    gate, waiting = busy(shop, 1200, within=40)
    named = shop.stage_many(20, namespace="acme", node="box-7")
    eventually(lambda: shop.row(named[-1]).published_at, 20)
    node.kill()
    eventually(lambda: any(relay.says("acknowledged") for relay in relays), 30, every=0.001)
    shop.worker("-c", "1", "--outbox-node", "box-7", wait=False)
    shop.open_gate(gate)
    done(shop, *waiting, *named, within=60)


def test_a_relay_that_dies_with_acknowledged_messages_leaves_rows_that_come_back(open_shop: OpenShop) -> None:
    """Between acknowledging and releasing: the queue lease ends, and each row runs once."""
    shop = open_shop(**{**SLOWLY, "outbox_queue_lease": 6})
    place(shop, "acme", PlacementKind.PREFER, "box-7")
    relay = shop.relay(dies_at="takeback.acknowledged")
    node = shop.worker("-c", "1", "--outbox-node", "box-7", wait=False)
    serving(shop, "acme:shop@box-7")
    gate, waiting = busy(shop, 3)
    node.kill()
    assert relay.wait(20) == -signal.SIGKILL
    assert shop.waiting("acme:shop@box-7") <= 1
    shop.open_gate(gate)
    shop.relay(wait=False)
    shop.worker("-c", "1", wait=False)
    done(shop, *waiting, within=40)
    assert {shop.row(one).rearms for one in waiting} == {1}


def test_neither_a_relay_that_restarts_nor_one_that_was_cut_off_takes_a_node_for_dead(
    open_shop: OpenShop, rabbitmq: RabbitMQ
) -> None:
    shop = open_shop(**SLOWLY)
    place(shop, "acme", PlacementKind.PREFER, "box-7")
    first = shop.relay()
    shop.worker("-c", "1", "--outbox-node", "box-7", wait=False)
    serving(shop, "acme:shop@box-7")
    gate, waiting = busy(shop, 3)
    proxy = Proxy(rabbitmq.port)
    try:
        first.kill()
        eventually(lambda: not any(one.live for one in shop.outbox.store.workers(shop.outbox.settings.worker_ttl)), 20)
        broker, shop.conf["broker_url"] = shop.conf["broker_url"], proxy.url(shop.conf["broker_url"])
        second = shop.relay()
        shop.conf["broker_url"] = broker
        late = shop.stage("charge", namespace="acme")
        eventually(lambda: shop.row(late).published_to == "acme:shop@box-7", 20)

        proxy.refuse = True
        proxy.cut()
        eventually(lambda: not any(one.live for one in shop.outbox.store.workers(shop.outbox.settings.worker_ttl)), 20)
        proxy.refuse = False
        later = shop.stage("charge", namespace="acme")
        eventually(lambda: shop.row(later).published_to == "acme:shop@box-7", 20)
        serving(shop, "acme:shop@box-7")
        shop.open_gate(gate)
        done(shop, *waiting, late, later)
        assert second.count("took back") == 0
    finally:
        proxy.close()


def test_a_node_takes_up_a_namespace_that_appears_while_it_runs(open_shop: OpenShop) -> None:
    """Its rows could not be published before, so that nothing else would tell the relay of it."""
    shop = open_shop(outbox_heartbeat=0.5)
    place(shop, "acme", PlacementKind.PINNED, "box-7")
    shop.relay()
    shop.worker("-c", "1", "--outbox-node", "box-7", pool="threads", wait=False)
    serving(shop, "acme:shop@box-7")
    place(shop, "globex", PlacementKind.PINNED, "box-7")
    late = shop.stage("charge", namespace="globex")
    done(shop, late, within=10)
    with Connection(shop.conf["broker_url"]) as connection:
        assert connection.default_channel.queue_declare("globex:shop@box-7", passive=True).consumer_count == 1
