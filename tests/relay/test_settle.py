"""What a relay makes of what comes by the broker: reports, beacons, markers, wishes, and rubbish."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import sqlalchemy as sa

from outbox_relay.core.beacon import Beacon, Held, HeldState, encode_beacon
from outbox_relay.core.settlement import Delivery, Retried, Settlement
from outbox_relay.core.wire import Reporter, encode_settlements
from outbox_relay.publish.envelope import report
from outbox_relay.relay.inbox import Inbox, consumer_connection
from outbox_relay.relay.markers import Marker
from outbox_relay.relay.reading import Reading
from outbox_relay.relay.settle import Settle
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from outbox_relay.core.row import Staged
    from tests.relay.conftest import Bench, OpenBench
    from tests.support.servers import Postgres

WORKER = Reporter(uuid4(), "w@test")


@dataclass
class Desk:
    """A settling loop, and what it told the others."""

    bench: Bench
    settle: Settle
    reading: Reading
    wishes: list[str] = field(default_factory=list)
    signed: list[Any] = field(default_factory=list)

    def send(self, body: bytes, queue: str = "settlements") -> None:
        target = getattr(self.bench.outbox.queues, queue)
        (receipt,) = self.bench.publisher.publish([report(0, target, body)], timeout=10)
        assert receipt.outcome.value == "confirmed", receipt

    def tick_until(self, condition: Any, within: float = 10) -> None:
        eventually(lambda: (self.settle.tick(), condition())[1], within, every=0)

    def claimed(self) -> tuple[Staged, Delivery]:
        """A row that is published, and its delivery as a worker knows it."""
        (staged,) = self.bench.stage()
        sweep = self.bench.sweep()
        sweep.tick()
        sweep.drain()
        row = self.bench.row(staged)
        queue = self.bench.outbox.queues.settlements.name
        return staged, Delivery(staged.row_id, row.attempt, row.claim_token, queue)

    def status(self, staged: Staged) -> str:
        return str(self.bench.row(staged).status.value)


@contextmanager
def desk(bench: Bench) -> Iterator[Desk]:
    parts = bench.parts
    connection = consumer_connection(bench.outbox.app.connection_for_read(), "shop", heartbeat=2, visible_after=2)
    queues = parts.queues
    inbox = Inbox(connection, [queues.settlements, queues.beacons, queues.relay], parts.events)
    reading = Reading(parts.leases.heartbeat)
    wishes: list[str] = []
    signed: list[Any] = []
    settle = Settle(parts, inbox, reading, sign_on=signed.append, wish=wishes.append, on_beacon=lambda _: None)
    yield Desk(bench, settle, reading, wishes, signed)
    settle.drain()


def test_a_report_settles_its_row_once_however_often_it_comes(
    open_bench: OpenBench, sqlite_url: str, broker_url: str
) -> None:
    with desk(open_bench(sqlite_url, broker_url)) as here:
        staged, delivery = here.claimed()
        body = encode_settlements(WORKER, [Settlement.done(delivery, staged.task_id)])
        here.send(body)
        here.send(body)
        here.tick_until(lambda: len(here.bench.said("settle.stale")) == 1)
        assert here.status(staged) == "done"
        assert here.bench.said("settle.stale")[0]["kind"] == "done"


def test_rubbish_is_set_aside_with_its_reason_and_the_rest_goes_on(bench: Bench) -> None:
    with desk(bench) as here:
        staged, delivery = here.claimed()
        for body in (b"\xff\x00", b"[]", b'{"v": 99}', json.dumps({"v": 1, "settlements": 7}).encode()):
            here.send(body)
        here.send(b"no beacon", queue="beacons")
        here.send(encode_settlements(WORKER, [Settlement.failed(delivery, staged.task_id, "boom\nline two")]))
        here.tick_until(lambda: here.status(staged) == "failed")
        here.tick_until(lambda: len(bench.said("settle.set_aside")) == 5)
        aside = bench.outbox.tables.aside
        with bench.engine.connect() as connection:
            assert connection.execute(sa.select(sa.func.count()).select_from(aside)).scalar() == 5
        assert bench.said("settle.failed") == [{"row_id": staged.row_id, "error": "boom"}]


def test_what_failed_is_told_in_one_line_a_batch(bench: Bench) -> None:
    """The event of each row fires all the same."""
    with desk(bench) as here:
        first, second = here.claimed(), here.claimed()
        here.send(
            encode_settlements(WORKER, [Settlement.failed(one[1], one[0].task_id, "boom") for one in (first, second)])
        )
        here.tick_until(lambda: len(bench.said("settle.failed")) == 2)
        (told,) = bench.said("settle.failures")
        assert told == {"rows": 2, "first": first[0].row_id, "error": "boom"}


def test_reports_of_a_newer_worker_are_read_as_far_as_they_are_known(bench: Bench) -> None:
    """A rolling deploy: fields that nobody knows are passed over, a kind that nobody knows is set aside alone."""
    with desk(bench) as here:
        (one, first), (two, second), (three, third) = (here.claimed() for _ in range(3))
        document = json.loads(
            encode_settlements(
                WORKER,
                [
                    Settlement.done(first, one.task_id),
                    Settlement.retry(second, two.task_id, Retried(delay=60, retries=1), "why"),
                    Settlement.done(third, three.task_id),
                ],
            )
        )
        done, retry, other = document["settlements"]
        done += [None, None, {"cpu": 3}]
        retry[-1]["mood"] = "good"
        other[0] = "hibernated"
        here.send(json.dumps({**document, "since": "a newer version"}).encode())
        here.tick_until(lambda: bench.said("settle.set_aside"))
        here.tick_until(lambda: here.status(one) == "done")
        assert [here.status(row) for row in (two, three)] == ["pending", "claimed"]
        (aside,) = bench.said("settle.set_aside")
        assert "hibernated" in aside["reason"]
        beacon = Beacon(instance=WORKER.instance, hostname="w@test", pool="prefork", queues=("shop",))
        held = json.loads(encode_beacon(beacon))
        held["beacon"]["temperature"] = 40
        here.send(json.dumps({**held, "more": 1}).encode(), queue="beacons")
        here.tick_until(lambda: bench.outbox.store.workers(bench.parts.settings.worker_ttl))


def test_a_beacon_keeps_a_row_that_it_holds_and_makes_its_worker_known(bench: Bench) -> None:
    with desk(bench) as here:
        staged, delivery = here.claimed()
        held = Held(delivery.row_id, delivery.token, HeldState.RUNNING_EARLY, 0.5)
        beacon = Beacon(instance=uuid4(), hostname="w@test", pool="prefork", queues=("shop",), held=(held,))
        before = bench.row(staged).lease_until
        here.send(encode_beacon(beacon), queue="beacons")
        here.tick_until(lambda: bench.row(staged).started_at is not None)
        assert bench.row(staged).lease_until < before  # only the worker has it: the run lease, which is shorter
        (worker,) = bench.outbox.store.workers(bench.parts.settings.worker_ttl)
        assert (worker.hostname, worker.live) == ("w@test", True)


def test_a_worker_that_leaves_is_gone_at_once(bench: Bench) -> None:
    with desk(bench) as here:
        store, ttl = bench.outbox.store, bench.parts.settings.worker_ttl
        staying, leaving = (
            Beacon(instance=uuid4(), hostname=name, pool="prefork", queues=("shop",)) for name in ("a@test", "b@test")
        )
        for beacon in (staying, leaving):
            here.send(encode_beacon(beacon), queue="beacons")
        here.tick_until(lambda: len(store.workers(ttl)) == 2)
        here.send(encode_beacon(replace(leaving, leaving=True)), queue="beacons")
        here.tick_until(lambda: [one.hostname for one in store.workers(ttl)] == ["a@test"])


def test_a_marker_comes_back_through_the_database_to_whoever_sent_it(bench: Bench) -> None:
    with desk(bench) as here:
        owner, store = uuid4(), bench.outbox.store
        store.relay_seen(owner, "elsewhere", "settle", bench.parts.leases.heartbeat, applied=None)
        marker = Marker(owner, uuid4())
        here.send(marker.encode())
        here.tick_until(lambda: store.relays()[0].marker == marker.id)


def test_what_beat_sends_to_the_relay_is_passed_on(open_bench: OpenBench, sqlite_url: str, broker_url: str) -> None:
    bench = open_bench(sqlite_url, broker_url)
    with desk(bench) as here:
        queue = bench.outbox.queues.relay
        bench.outbox.app.send_task("outbox_relay.rearm", queue=queue, exchange="", routing_key=queue.name)
        here.tick_until(lambda: here.wishes == ["outbox_relay.rearm"])


def test_the_register_is_signed_with_an_instant_before_which_all_is_applied(
    open_bench: OpenBench, sqlite_url: str, broker_url: str
) -> None:
    bench = open_bench(sqlite_url, broker_url)
    with desk(bench) as here:
        staged, delivery = here.claimed()
        here.tick_until(lambda: here.signed)
        here.send(encode_settlements(WORKER, [Settlement.done(delivery, staged.task_id)]))
        sent_at = bench.outbox.store.now()
        here.settle.hurry()
        here.tick_until(lambda: here.signed[-1] > sent_at)
        assert here.status(staged) == "done"


def test_a_report_waits_at_the_broker_while_the_database_is_away(
    open_bench: OpenBench, postgres: Postgres, postgres_url: str, broker_url: str, request: pytest.FixtureRequest
) -> None:
    """Nothing is held in memory meanwhile, and its absence is a gap in what is known of workers."""
    bench = open_bench(postgres_url, broker_url, outbox_heartbeat=0.5)
    with desk(bench) as here:
        staged, delivery = here.claimed()
        here.tick_until(lambda: here.reading.lasts(bench.parts.leases.heartbeat))
        postgres.stop()
        try:
            here.send(encode_settlements(WORKER, [Settlement.done(delivery, staged.task_id)]))
            here.tick_until(lambda: bench.said("store.lost"))
            for _ in range(3):
                here.settle.tick()
            assert not here.reading.lasts(bench.parts.leases.heartbeat)
            assert len(bench.said("store.lost")) == 1
        finally:
            postgres.start()
        here.tick_until(lambda: bench.said("store.back"), 20)
        here.tick_until(lambda: here.status(staged) == "done", 20)
