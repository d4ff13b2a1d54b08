"""When nothing is re-armed: as long as it is not known that nothing is on its way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from outbox_relay.core.beacon import Beacon
from outbox_relay.errors import StoreAway
from outbox_relay.publish.drain import Drain
from outbox_relay.publish.peek import Depths
from outbox_relay.relay.reading import Reading
from outbox_relay.relay.rearm import Rearm
from outbox_relay.relay.watch import Watch
from tests.store.bench import Statements
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from outbox_relay.core.leases import Sight
    from outbox_relay.core.processes import WorkerInfo
    from outbox_relay.core.row import Staged
    from tests.relay.conftest import Bench, OpenBench
    from tests.support.servers import RabbitMQ


@dataclass
class Case:
    """A relay's re-arming loop on clocks of the test's own."""

    bench: Bench
    rearm: Rearm
    reading: Reading
    now: float = 1_000.0

    def clock(self) -> float:
        return self.now

    def listens(self, seconds: float = 60) -> None:
        """Reports are read for so long without a gap."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.reading.goes_on()

    def signs(self, instance: UUID | None = None, *, applied: bool = True) -> None:
        store, parts = self.bench.outbox.store, self.bench.parts
        now = store.now() if applied else None
        store.relay_seen(instance or parts.instance, "here", "sweep settle", parts.settings.worker_ttl, applied=now)

    def marker_comes_back(self) -> None:
        marker = self.rearm._round.marker
        self.bench.outbox.store.marker_back(marker.owner, marker.id)

    def tick(self) -> None:
        self.now += 0.1
        self.reading.goes_on()
        self.rearm.tick()

    def stale_row(self) -> Staged:
        """A row whose claim was never marked, and is over."""
        (staged,) = self.bench.stage()
        store, tables = self.bench.outbox.store, self.bench.outbox.tables
        store.claim(limit=10, claimed_by=uuid4(), lease=self.bench.parts.leases.publish)
        with self.bench.engine.begin() as connection:
            ended = tables.row.c.claimed_at
            connection.execute(sa.update(tables.row).where(tables.row.c.id == staged.row_id).values(lease_until=ended))
        return staged

    def is_rearmed(self, staged: Staged) -> bool:
        return str(self.bench.row(staged).status.value) == "pending"


class Sleepy(Watch):
    """A look at the queues in the middle of which the machine sleeps for an hour."""

    case: Case

    def present(self, queues: Collection[str], workers: Iterable[WorkerInfo]) -> dict[str, Sight]:
        self.case.now += 3_600
        return super().present(queues, workers)


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> str:
    """The broker's URL; the lightest one, where a test does not ask for another."""
    return str(request.getfixturevalue(f"{getattr(request, 'param', 'embedded')}_url"))


@pytest.fixture
def conf(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings, where a test asks for others than the defaults."""
    return dict(getattr(request, "param", {}))


@pytest.fixture
def case(open_bench: OpenBench, sqlite_url: str, broker: str, conf: dict[str, Any]) -> Iterator[Case]:
    bench = open_bench(sqlite_url, broker, **conf)
    holder: list[Case] = []

    def clock() -> float:
        return holder[0].now if holder else 1_000.0

    app, parts = bench.outbox.app, bench.parts
    reading = Reading(parts.leases.heartbeat, clock)
    depths = Depths(app)
    watch = Watch(app, depths, parts.leases.queue, parts.store.published_at)
    rearm = Rearm(parts, bench.publisher, watch, reading, hurry=lambda: None, woken=lambda: None, clock=clock)
    holder.append(Case(bench, rearm, reading))
    yield holder[0]
    depths.close()


def test_a_stale_claim_is_rearmed_when_everything_before_the_marker_is_applied(case: Case) -> None:
    staged = case.stale_row()
    case.signs()
    case.listens()
    case.tick()
    case.marker_comes_back()
    case.signs()
    case.tick()
    assert case.is_rearmed(staged)
    row = case.bench.row(staged)
    assert (row.attempt, row.failures, row.rearms) == (0, 0, 1)
    assert row.claim_token is not None  # the last delivery may still report
    assert case.bench.said("rearm.rearmed") == [{"rows": 1}]


def test_where_nothing_is_claimed_one_statement_finds_that_out(case: Case) -> None:
    case.bench.stage()
    with Statements(case.bench.outbox.store.engine) as statements:
        case.tick()
    assert len(statements.seen) == 1


def test_nothing_is_rearmed_by_a_relay_that_has_not_listened_long_enough(case: Case) -> None:
    staged = case.stale_row()
    case.signs()
    case.listens(20)
    case.tick()
    assert case.rearm._round is None
    assert not case.is_rearmed(staged)
    assert "without a gap" in case.bench.said("rearm.waits")[0]["reason"]


def test_nothing_is_rearmed_before_the_marker_has_come_back(case: Case) -> None:
    staged = case.stale_row()
    case.signs()
    case.listens()
    case.tick()
    case.signs()
    for _ in range(5):
        case.tick()
    assert not case.is_rearmed(staged)


def test_nothing_is_rearmed_before_this_relay_has_applied_what_it_had_received(case: Case) -> None:
    staged = case.stale_row()
    case.signs()
    case.listens()
    case.tick()
    case.marker_comes_back()
    case.tick()
    assert not case.is_rearmed(staged)


def test_nothing_is_rearmed_before_another_live_relay_has_applied_what_it_had_received(case: Case) -> None:
    other = uuid4()
    staged = case.stale_row()
    case.signs()
    case.signs(other)
    case.listens()
    case.tick()
    case.marker_comes_back()
    case.signs()
    case.tick()
    assert not case.is_rearmed(staged)
    case.signs(other)
    case.tick()
    assert case.is_rearmed(staged)


SHORT_BEATS = {"outbox_heartbeat": 0.5, "outbox_worker_ttl": 30, "outbox_run_lease": 3, "outbox_queue_lease": 6}


@pytest.mark.parametrize("conf", [SHORT_BEATS], indirect=True)
def test_a_round_waits_for_a_relay_that_waits_for_its_database(case: Case) -> None:
    """However short the heartbeats are: such a wait may take three seconds."""
    other = uuid4()
    staged = case.stale_row()
    case.signs()
    case.signs(other, applied=False)
    case.listens()
    case.tick()
    case.marker_comes_back()
    case.signs()
    for _ in range(45):
        case.tick()
    assert case.rearm._round is not None
    assert not case.is_rearmed(staged)
    case.signs(other)
    case.tick()
    assert case.is_rearmed(staged)


def test_a_relay_that_goes_meanwhile_makes_the_marker_worthless(case: Case) -> None:
    """What it held goes back to the queue, behind the marker."""
    other = uuid4()
    staged = case.stale_row()
    case.signs()
    case.signs(other)
    case.listens()
    case.tick()
    case.marker_comes_back()
    case.bench.outbox.store.relay_gone(other)
    case.signs()
    case.tick()
    assert not case.is_rearmed(staged)
    case.listens()
    case.tick()  # the round is given up
    case.listens()
    case.tick()  # and another one begins
    case.marker_comes_back()
    case.signs()
    case.tick()
    assert case.is_rearmed(staged)


def test_a_gap_after_the_marker_was_sent_stops_the_round(case: Case) -> None:
    staged = case.stale_row()
    case.signs()
    case.listens()
    case.tick()
    case.marker_comes_back()
    case.signs()
    case.reading.breaks()
    case.rearm.tick()
    assert not case.is_rearmed(staged)


@pytest.mark.owns_server
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_nothing_is_rearmed_for_a_while_after_a_broker_has_taken_no_messages(case: Case, rabbitmq: RabbitMQ) -> None:
    """It took no beacons either: those who could not speak must have had time to."""
    publisher = case.bench.publisher
    staged = case.stale_row()
    case.signs()
    case.listens()
    rabbitmq.ctl("set_vm_memory_high_watermark", "0.0001")
    try:
        case.tick()  # the first message after the alarm: the broker says that it blocks
        case.rearm._round = None
        eventually(lambda: (publisher.pulse(), publisher.blocked)[1], 15)
        case.tick()
        assert case.rearm._round is None
    finally:
        rabbitmq.ctl("set_vm_memory_high_watermark", "0.4")
    eventually(lambda: (publisher.pulse(), not publisher.blocked)[1], 15)
    case.listens(20)
    case.rearm.ask()
    case.tick()
    assert case.rearm._round is None
    case.listens(20)
    case.rearm.ask()
    case.tick()
    assert case.rearm._round is not None
    assert not case.is_rearmed(staged)


def test_a_database_that_is_away_is_not_told_to_be_back_before_it_answers(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise StoreAway("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(type(case.bench.outbox.store), "in_flight", away)
        for _ in range(5):
            case.tick()
        assert (len(case.bench.said("store.lost")), case.bench.said("store.back")) == (1, [])
    case.tick()
    assert len(case.bench.said("store.back")) == 1


def test_nothing_is_rearmed_by_a_relay_that_has_slept_while_it_looked(case: Case) -> None:
    """All that kept the row alive meanwhile is still unread."""
    staged = case.stale_row()
    case.signs()
    case.listens()
    case.tick()
    case.marker_comes_back()
    case.signs()
    depths = Depths(case.bench.outbox.app)
    store, leases = case.bench.parts.store, case.bench.parts.leases
    sleepy = Sleepy(case.bench.outbox.app, depths, leases.queue, store.published_at)
    sleepy.case, case.rearm._watch = case, sleepy
    case.tick()
    assert case.now > 4_000
    assert not case.is_rearmed(staged)
    depths.close()


def test_an_idle_relay_sends_no_marker(case: Case) -> None:
    case.signs()
    case.listens()
    case.tick()
    assert case.rearm._round is None
    assert case.bench.said("rearm.waits") == []


def test_a_claim_that_lives_is_left_alone(case: Case) -> None:
    (staged,) = case.bench.stage()
    case.bench.outbox.store.claim(limit=10, claimed_by=uuid4(), lease=case.bench.parts.leases.publish)
    case.signs()
    case.listens()
    case.tick()
    assert case.rearm._round is None
    assert not case.is_rearmed(staged)


def test_a_queue_that_looked_empty_for_a_moment_has_lost_nothing(case: Case) -> None:
    """Another relay, that takes messages back, had in hand what waits for a node that died."""
    store, tables = case.bench.outbox.store, case.bench.outbox.tables
    (staged,) = case.bench.stage()
    case.bench.sweep().tick()
    beacon = Beacon(instance=uuid4(), hostname="w@host", pool="prefork", queues=("shop",))
    store.beacon(beacon, run_lease=case.bench.parts.leases.run, message_expires=False)
    now = store.now()
    with case.bench.engine.begin() as connection:
        connection.execute(sa.update(tables.row).values(published_at=now - timedelta(hours=2)))
        connection.execute(sa.update(tables.worker).values(last_seen_at=now - timedelta(hours=1)))

    def round_() -> None:
        case.signs()
        case.listens()
        case.tick()
        if case.rearm._round is not None:
            case.marker_comes_back()
            case.signs()
            case.tick()

    drain = Drain(case.bench.outbox.app, "shop")
    drain.open()
    assert len(drain.take(10)) == 1
    round_()
    drain.give_back()
    for _ in range(3):
        round_()
    assert not case.is_rearmed(staged)
    drain.open()
    drain.acknowledge(drain.take(10))
    drain.give_back()
    for _ in range(3):
        round_()
    assert case.is_rearmed(staged)
