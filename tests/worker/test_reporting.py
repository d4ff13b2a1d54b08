"""What waits for the reporter is bounded, and each end is told once, whoever asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from outbox_relay.core.settlement import Delivery, Kind, Retried, Settlement
from outbox_relay.events import Events
from outbox_relay.worker import outcomes, reporter
from outbox_relay.worker.desk import Desk
from outbox_relay.worker.reporter import Waiting, parcels_of

if TYPE_CHECKING:
    from outbox_relay.events import Event

QUEUE = "outbox.settlements.shop"


def delivery(row: int = 1, queue: str = QUEUE) -> Delivery:
    return Delivery(row, 0, UUID(int=row), queue)


def done(row: int = 1, queue: str = QUEUE) -> Settlement:
    return Settlement.done(delivery(row, queue), "id")


class Collector:
    """The reporter's one method that a desk uses, without a thread."""

    def __init__(self) -> None:
        self.reports: list[Settlement] = []

    def report(self, settlement: Settlement) -> None:
        self.reports.append(settlement)


def message(row: int = 1, **headers: Any) -> Any:
    return SimpleNamespace(headers={"x-outbox": delivery(row).header(), "id": "id", **headers}, properties={})


def desk_and_reports() -> tuple[Desk, Collector, list[Event]]:
    collector, events, seen = Collector(), Events(), list[Any]()
    events.subscribe(seen.append)
    return Desk(collector, events), collector, seen  # type: ignore[arg-type]  # all that it uses of a reporter


def test_an_end_is_told_once_whichever_thread_tells_it() -> None:
    desk, collector, _ = desk_and_reports()
    jobs = [desk.receive(message(row)) for row in range(500)]
    with ThreadPoolExecutor(8) as pool:
        for job in jobs * 8:
            assert job is not None
            pool.submit(desk.end, job, outcomes.of_release)
    assert len(collector.reports) == 500
    assert desk.open_jobs() == []


def test_a_fault_in_reporting_stays_inside() -> None:
    desk, collector, seen = desk_and_reports()
    job = desk.receive(message())
    assert job is not None

    def decide(job: object) -> Settlement:
        raise LookupError("a bug")

    desk.end(job, decide)
    assert collector.reports == []
    assert [event.name for event in seen] == ["worker.fault"]
    assert desk.receive(SimpleNamespace(headers={"x-outbox": delivery().header()}, properties=None)) is None
    assert seen[-1].name == "worker.fault"


@pytest.mark.parametrize("header", [None, 7, "", "1;2", "2;1;0;" + "0" * 32 + ";" + QUEUE, "1;1;0;" + "0" * 32 + ";x"])
def test_a_header_of_somebody_else_makes_no_job(header: object) -> None:
    desk, _, seen = desk_and_reports()
    assert desk.receive(SimpleNamespace(headers={"x-outbox": header}, properties={})) is None
    assert desk.receive(SimpleNamespace(headers=None, properties={})) is None
    assert seen == []


def test_a_job_forgotten_with_its_connection_is_known_again_when_it_starts() -> None:
    desk, collector, _ = desk_and_reports()
    job = desk.receive(message())
    assert job is not None
    desk.forget_returned()
    assert desk.held(QUEUE) == ()
    desk.start(job, early=True)
    assert len(desk.held(QUEUE)) == 1
    desk.end(job, outcomes.of_departure)
    assert [report.kind for report in collector.reports] == [Kind.LOST]


def test_a_job_cancelled_with_its_connection_is_not_held_any_more() -> None:
    desk, collector, _ = desk_and_reports()
    job = desk.receive(message())
    assert job is not None
    desk.start(job, early=False)
    desk.forget_returned()
    assert len(desk.held(QUEUE)) == 1
    job.cancelled = True
    desk.forget_returned()
    assert desk.held(QUEUE) == ()
    desk.end(job, outcomes.of_departure)
    assert [report.kind for report in collector.reports] == [Kind.REQUEUED]


def test_news_of_a_running_task_is_told_once() -> None:
    desk, _, _ = desk_and_reports()
    early, late = desk.receive(message(1)), desk.receive(message(2))
    assert early is not None
    assert late is not None
    desk.start(early, early=True)
    desk.start(late, early=False)
    assert desk.newly_running(60) == {}
    assert [held.row_id for held in desk.newly_running(0)[QUEUE]] == [1]
    assert desk.newly_running(0) == {}


def test_what_waits_is_bounded_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "MAX_WAITING", 10)
    waiting = Waiting()
    assert [waiting.put(done()) for _ in range(12)] == [True] * 10 + [False] * 2
    assert waiting.take_dropped() == 2
    assert waiting.take_dropped() == 0
    assert len(waiting.take()) == 10
    assert waiting.put(done())


def test_what_waits_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "MAX_WAITING_BYTES", 2_500)
    waiting, bulky = Waiting(), Settlement.failed(delivery(), "id", "x" * 1_000)
    assert [waiting.put(bulky) for _ in range(3)] == [True, True, False]
    assert waiting.put(done()), "what has no bulk still fits"
    waiting.take()
    assert waiting.put(bulky)


def test_settlements_are_sorted_by_queue_and_none_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "MESSAGE_BYTES", 1_000)
    retry = Settlement.retry(delivery(3), "id", Retried(delay=1, retries=1, body=b"x" * 900))
    parcels = parcels_of([done(1), done(2, "outbox.settlements.other"), retry, retry, done(4)])
    assert [(parcel.queue, len(parcel.settlements)) for parcel in parcels] == [
        (QUEUE, 2),
        ("outbox.settlements.other", 1),
        (QUEUE, 2),
    ]


class BaseOfMineError(Exception):
    pass


class MineError(BaseOfMineError, ValueError):
    pass


@pytest.mark.parametrize(
    ("named", "matched"),
    [
        (("MineError",), True),
        (("BaseOfMineError",), True),
        (("ValueError",), True),
        (("builtins.ValueError",), True),
        ((f"{__name__}.MineError",), True),
        (("other.MineError",), False),
        (("KeyError",), False),
        (("*",), True),
        ((), False),
    ],
)
def test_exceptions_are_named_over_their_bases(named: tuple[str, ...], matched: bool) -> None:
    assert outcomes.matches(outcomes.lineage_of(MineError), named) is matched


def test_a_tasks_own_names_replace_the_apps() -> None:
    assert outcomes.names_of(None, ("A",)) == ("A",)
    assert outcomes.names_of(SimpleNamespace(), ("A",)) == ("A",)
    assert outcomes.names_of(SimpleNamespace(outbox_retry_for=()), ("A",)) == ()
    assert outcomes.names_of(SimpleNamespace(outbox_retry_for=MineError), ("A",)) == (f"{__name__}.MineError",)
    assert outcomes.names_of(SimpleNamespace(outbox_retry_for=["*", KeyError]), ("A",)) == ("*", "builtins.KeyError")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_shown_is_described_all_the_same() -> None:
    assert outcomes.describe(MuteError()).endswith("MuteError: <its message cannot be shown: RuntimeError>")
    assert outcomes.describe(ValueError()) == "ValueError"
    assert outcomes.describe(ValueError("x"), "Traceback") == "ValueError: x\nTraceback"
