"""Messages that wait for a node that died, or where a pinned namespace may not run, come back to the outbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from kombu import Connection

from outbox_relay.core.beacon import Beacon
from outbox_relay.core.namespaces import PlacementKind
from outbox_relay.core.settlement import Delivery
from outbox_relay.relay.reading import Reading
from outbox_relay.relay.takeback import Takeback
from outbox_relay.store.takeback import Takebacks
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_relay.core.row import Staged
    from tests.relay.conftest import Bench, OpenBench
    from tests.support.servers import Postgres, RabbitMQ

    OpenStand = Callable[..., "Stand"]

NODE, POOL = "acme:shop@n1", "acme:shop"


@dataclass
class Stand:
    """A bench with a relay that takes messages back, on a clock that only tests move."""

    bench: Bench
    clock: float = 1000.0
    woken: int = 0
    workers: dict[str, UUID] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reading = Reading(self.bench.parts.settings.heartbeat, lambda: self.clock)
        takebacks = Takebacks.of(self.bench.parts.store, self.bench.parts.settings)
        takebacks._notices._read_for = 0.0  # nothing is remembered
        self.takeback = Takeback(self.bench.parts, takebacks, self.reading, woken=self._wake, clock=lambda: self.clock)
        self.sweep = self.bench.sweep()

    def _wake(self) -> None:
        self.woken += 1

    def read_on(self, beats: int = 4) -> None:
        """Beacons are read without a gap for so long."""
        for _ in range(beats + 1):
            self.reading.goes_on()
            self.clock += self.bench.parts.leases.heartbeat.total_seconds()
        self.reading.goes_on()

    def place(self, kind: PlacementKind, *nodes: str, namespace: str = "acme") -> None:
        store = self.bench.outbox.store
        store.governing.set_namespace(namespace, create=True, placement=kind, nodes=nodes)
        store._claims._notices.forget()

    def worker(self, name: str, *queues: str, held: tuple[Any, ...] = ()) -> None:
        """A beacon of a worker."""
        instance = self.workers.setdefault(name, uuid4())
        beacon = Beacon(instance=instance, hostname=name, pool="prefork", queues=queues, held=held)
        self.bench.parts.store.beacon(beacon, run_lease=self.bench.parts.leases.run, message_expires=True)
        self.bench.parts.store._claims._notices.forget()

    def die(self, name: str) -> None:
        """The worker was last heard of so long ago that sweeps do not ask any more whether it may only be unheard."""
        worker = self.bench.outbox.tables.worker
        with self.bench.engine.begin() as connection:
            now = connection.execute(sa.select(worker.c.last_seen_at)).scalars().all()[0]
            earlier = now.replace(year=now.year - 1)
            query = sa.update(worker).where(worker.c.instance == self.workers[name])
            connection.execute(query.values(last_seen_at=earlier))
        self.bench.parts.store._claims._notices.forget()

    def leave(self, name: str) -> None:
        """The worker has ended in good order, and the register has it no more."""
        self.bench.parts.store.worker_gone(self.workers[name])
        self.bench.parts.store._claims._notices.forget()

    def publish(self, count: int = 1, **options: Any) -> list[Staged]:
        """Stage rows and let the relay publish them."""
        staged = self.bench.stage(count, **{"namespace": "acme", **options})
        self.sweep.tick()
        assert all(self.row(one).published_at for one in staged)
        return staged

    def row(self, staged: Staged) -> Any:
        return self.bench.row(staged)

    def tick(self, times: int = 10) -> None:
        for _ in range(times):
            if self.takeback.tick() > 0:
                self.clock += self.bench.parts.leases.heartbeat.total_seconds() / 2
                self.reading.goes_on()

    def waiting(self, queue: str) -> list[int]:
        """Take all messages of a queue, and return the ids of their rows."""
        found: list[int] = []
        with Connection(self.bench.outbox.app.conf.broker_url) as connection:
            channel = connection.channel()
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                read = getattr(channel, "message_to_python", lambda one: one)(message)
                delivery = Delivery.parse((read.headers or {}).get("x-outbox"))
                found.append(0 if delivery is None else delivery.row_id)
        return found

    def took(self) -> list[tuple[str, int]]:
        return [(one["queue"], one["rows"]) for one in self.bench.said("takeback.taken")]


@pytest.fixture
def open_stand(open_bench: OpenBench) -> Iterator[OpenStand]:
    stands: list[Stand] = []

    def open_(database_url: str, broker_url: str, **conf: Any) -> Stand:
        stands.append(Stand(open_bench(database_url, broker_url, **conf)))
        return stands[-1]

    yield open_
    for stand in stands:
        stand.takeback.drain()


@pytest.fixture(params=["sqlite-embedded", "postgres-rabbitmq", "postgres-redis"])
def stand(request: pytest.FixtureRequest, open_stand: OpenStand) -> Stand:
    database, broker = request.param.split("-")
    return open_stand(request.getfixturevalue(f"{database}_url"), request.getfixturevalue(f"{broker}_url"))


@pytest.fixture
def light(open_stand: OpenStand, sqlite_url: str, embedded_url: str) -> Stand:
    return open_stand(sqlite_url, embedded_url)


def test_what_waits_for_a_preferred_node_that_died_goes_to_the_pool(stand: Stand) -> None:
    """Rows that name the node themselves keep waiting for it, in their order; nothing is spent."""
    stand.place(PlacementKind.PREFER, "n1")
    stand.worker("w1", NODE)
    mixed = [stand.publish(node=node)[0] for node in (None, "n1", None, "n1", None)]
    assert {stand.row(one).published_to for one in mixed} == {NODE}
    stand.die("w1")
    stand.read_on()
    stand.tick()
    free, authored = mixed[0::2], mixed[1::2]
    assert [stand.row(one).status.value for one in free] == ["pending"] * 3
    assert [(stand.row(one).attempt, stand.row(one).failures, stand.row(one).rearms) for one in free] == [(0, 0, 0)] * 3
    assert [stand.row(one).node for one in mixed] == [None, "n1", None, "n1", None]
    assert stand.took() == [(NODE, 3)]
    assert stand.woken == 1
    stand.sweep.tick()
    assert stand.waiting(POOL) == [one.row_id for one in free]
    assert stand.waiting(NODE) == [one.row_id for one in authored]
    assert [stand.row(one).status.value for one in authored] == ["claimed"] * 2


def test_what_waits_for_a_preferred_node_whose_worker_was_stopped_goes_to_the_pool(light: Stand) -> None:
    """Nobody knows of that worker any more; it is not judged before beacons were read for a while, either."""
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    staged = light.publish(2)
    light.leave("w1")
    light.tick()
    assert light.took() == []
    light.read_on()
    light.tick(20)
    assert light.took() == [(NODE, 2)]
    light.sweep.tick()
    assert light.waiting(POOL) == [one.row_id for one in staged]


def test_nobody_is_judged_dead_before_beacons_were_read_for_three_heartbeats(light: Stand) -> None:
    """A relay that has just started, or whose broker or database was away, has not heard of the living yet."""
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    (staged,) = light.publish()
    light.die("w1")
    light.tick()
    light.read_on()
    light.reading.breaks()
    light.tick(3)
    assert light.took() == []
    assert light.waiting(NODE) == [staged.row_id]


def test_the_pool_gives_back_what_belongs_to_a_namespace_that_was_pinned_since(stand: Stand) -> None:
    """Also while nobody may be judged dead; the rows wait for their nodes, and others' rows stay where they are."""
    ours, others = stand.publish(3), stand.publish(2, namespace="globex")
    plain = stand.publish(2, namespace="default")
    stand.place(PlacementKind.PINNED, "n1")
    stand.place(PlacementKind.PINNED, "n1", namespace="default")
    stand.tick()
    assert [stand.row(one).status.value for one in ours] == ["pending"] * 3
    assert stand.took() == [(POOL, 3)]
    stand.sweep.tick()
    assert stand.waiting(POOL) == []
    assert stand.waiting("globex:shop") == [one.row_id for one in others]
    assert stand.waiting("shop") == [one.row_id for one in plain]
    stand.worker("w1", NODE)
    stand.sweep.tick()
    assert sorted(stand.waiting(NODE)) == [one.row_id for one in ours]


def test_a_pinned_node_that_died_gives_back_only_where_another_one_lives(light: Stand) -> None:
    light.place(PlacementKind.PINNED, "n1", "n2")
    light.worker("w1", NODE)
    (staged,) = light.publish()
    light.die("w1")
    light.read_on()
    light.tick()
    assert light.took() == []
    light.worker("w2", "acme:shop@n2")
    light.tick(20)
    assert light.took() == [(NODE, 1)]
    light.sweep.tick()
    assert light.row(staged).published_to == "acme:shop@n2"


def test_queues_that_namespaces_share_are_left_alone(open_stand: OpenStand, sqlite_url: str, embedded_url: str) -> None:
    stand = open_stand(sqlite_url, embedded_url, outbox_namespace_queues=False)
    pooled = stand.publish(2)
    stand.place(PlacementKind.PREFER, "n1")
    stand.worker("w1", "shop@n1")
    placed = stand.publish(2)
    stand.place(PlacementKind.PINNED, "n2")
    stand.worker("w2", "shop@n2")
    stand.read_on()
    stand.tick()
    assert stand.took() == [("shop@n1", 2)]
    assert stand.waiting("shop") == [one.row_id for one in pooled]
    stand.sweep.tick()
    assert {stand.row(one).published_to for one in placed} == {"shop@n2"}


def test_a_worker_that_comes_back_in_the_middle_keeps_the_rest(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox_relay.relay.takeback.CHUNK", 3)
    stand.place(PlacementKind.PREFER, "n1")
    stand.worker("w1", NODE)
    staged = stand.publish(8)
    order = [one.row_id for one in staged]
    stand.die("w1")
    stand.read_on()
    while not stand.bench.said("takeback.acknowledged"):
        stand.tick(1)
    stand.worker("w1", NODE)
    stand.tick(5)
    assert stand.took() == [(NODE, 3)]
    assert [one for one in order if stand.row(staged[order.index(one)]).status.value == "claimed"] == order[3:]
    assert stand.waiting(NODE) == order[3:]


def test_what_a_live_worker_has_in_hand_is_not_taken_from_it(light: Stand) -> None:
    """It lost its connection, and the broker has the message again; the task runs all the same."""
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    staged = light.publish(2)
    row = light.bench.outbox.tables.row
    light.worker("w2")
    with light.bench.engine.begin() as connection:
        held = sa.update(row).where(row.c.id == staged[0].row_id)
        connection.execute(held.values(worker=str(light.workers["w2"])))
    light.die("w1")
    light.read_on()
    light.tick()
    assert light.took() == [(NODE, 1)]
    assert light.waiting(NODE) == [staged[0].row_id]


def test_a_message_that_its_row_has_left_behind_is_dropped(light: Stand) -> None:
    """An operator had the row re-armed, and it was published again: one message of it is enough."""
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    staged = light.publish(2)
    with light.bench.engine.begin() as connection:
        row = light.bench.outbox.tables.row
        connection.execute(sa.update(row).where(row.c.id == staged[0].row_id).values(claim_token=uuid4()))
    light.die("w1")
    light.read_on()
    light.tick()
    assert light.took() == [(NODE, 1)]
    assert light.waiting(NODE) == []
    assert light.row(staged[0]).status.value == "claimed"


def test_a_message_whose_row_was_done_when_it_was_published_is_all_that_is_left_of_it(light: Stand) -> None:
    """``settle_on="publish"``: nobody would bring it back."""
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    (kept,) = light.bench.stage(namespace="acme", settle_on="publish")
    (taken,) = light.publish()
    assert light.row(kept).status.value == "done"
    light.die("w1")
    light.read_on()
    light.tick()
    assert light.took() == [(NODE, 1)]
    assert light.waiting(NODE) == [kept.row_id]
    assert light.row(taken).status.value == "pending"


def test_a_queue_with_messages_of_somebody_else_is_left_alone_and_told_of_once(light: Stand) -> None:
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    (staged,) = light.publish()
    with Connection(light.bench.outbox.app.conf.broker_url) as connection, connection.Producer() as producer:
        producer.publish({}, routing_key=NODE, serializer="json")
    light.die("w1")
    light.read_on()
    light.tick(40)
    assert light.bench.said("takeback.shared") == [{"queue": NODE}]
    assert light.took() == []
    assert light.waiting(NODE) == [staged.row_id, 0]


def test_rows_of_another_outbox_are_not_ours_to_take(light: Stand) -> None:
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    (ours,) = light.publish()
    delivery = Delivery(ours.row_id, 0, uuid4(), "outbox.settlements.other")
    with Connection(light.bench.outbox.app.conf.broker_url) as connection, connection.Producer() as producer:
        producer.publish({}, routing_key=NODE, serializer="json", headers={"x-outbox": delivery.header()})
    light.die("w1")
    light.read_on()
    light.tick()
    assert light.took() == [(NODE, 1)]
    assert light.waiting(NODE) == [ours.row_id]


def test_a_placement_that_cannot_be_read_moves_nothing(light: Stand) -> None:
    """Lesson 26: what is not known is not taken for "none"."""
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    (staged,) = light.publish()
    with light.bench.engine.begin() as connection:
        table = light.bench.outbox.tables.namespace
        connection.execute(sa.update(table).where(table.c.namespace == "acme").values(placement="orbit"))
    light.die("w1")
    light.read_on()
    light.tick()
    assert light.took() == []
    assert light.waiting(NODE) == [staged.row_id]


def test_what_was_acknowledged_is_released_when_the_database_is_back(
    open_stand: OpenStand, postgres: Postgres, postgres_url: str, embedded_url: str
) -> None:
    proxy = Proxy(postgres.port)
    try:
        stand = open_stand(proxy.url(postgres_url), embedded_url)
        stand.place(PlacementKind.PREFER, "n1")
        stand.worker("w1", NODE)
        staged = stand.publish(2)
        stand.die("w1")
        stand.read_on()

        def go_away(event: Any) -> None:
            if event.name == "takeback.acknowledged":
                proxy.refuse = True
                proxy.cut()
                eventually(lambda: proxy.idle, 10)

        stand.bench.outbox.events.subscribe(go_away)
        stand.tick(8)
        assert stand.bench.said("takeback.acknowledged")
        assert stand.woken == 0
        proxy.refuse = False
        stand.tick(8)
        assert stand.woken == 1
        assert [stand.row(one).status.value for one in staged] == ["pending"] * 2
    finally:
        proxy.close()


def test_a_relay_that_stops_in_the_middle_gives_back_what_it_has_in_hand(
    light: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_relay.relay.takeback.CHUNK", 2)
    light.place(PlacementKind.PREFER, "n1")
    light.worker("w1", NODE)
    authored = light.publish(2, node="n1")
    free = light.publish(4)
    light.die("w1")
    light.read_on()
    while not light.bench.said("takeback.acknowledged"):
        light.tick(1)
    light.takeback.drain()
    assert [light.row(one).status.value for one in free] == ["pending"] * 2 + ["claimed"] * 2
    assert light.waiting(NODE) == [one.row_id for one in (*authored, *free[2:])]


def test_a_broker_that_is_away_leaves_everything_as_it_is(
    open_stand: OpenStand, sqlite_url: str, rabbitmq: RabbitMQ, rabbitmq_url: str
) -> None:
    proxy = Proxy(rabbitmq.port)
    try:
        stand = open_stand(sqlite_url, proxy.url(rabbitmq_url))
        stand.place(PlacementKind.PREFER, "n1")
        stand.worker("w1", NODE)
        staged = stand.publish(3)
        stand.die("w1")
        stand.read_on()
        proxy.refuse = True
        proxy.cut()
        stand.tick(3)
        assert stand.took() == []
        proxy.refuse = False
        stand.tick()
        assert stand.took() == [(NODE, 3)]
        assert [stand.row(one).status.value for one in staged] == ["pending"] * 3
    finally:
        proxy.close()
