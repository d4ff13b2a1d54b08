"""Every way in which a task can end gives exactly one report, in every pool, acknowledged early or late."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import celery
import pytest

from outbox_relay.core.settlement import Kind
from tests.worker.harness import Desk, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import RabbitMQ
    from tests.worker.harness import Sent


class Mode(NamedTuple):
    pool: str
    late: bool

    def __str__(self) -> str:
        return f"{self.pool}-{'late' if self.late else 'early'}"


@dataclass(frozen=True)
class End:
    """A message, and the report that it has to give; ``says`` must be in the report's text."""

    name: str
    task: str
    kind: Kind
    says: str = ""
    args: tuple[Any, ...] = ()
    more: tuple[tuple[str, Any], ...] = ()
    pools: tuple[str, ...] = ("prefork", "threads", "solo", "gevent")


CELERY = tuple(int(part) for part in celery.__version__.split(".")[:2])


def soon() -> dict[str, str]:
    return {"eta": (datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat()}


EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
PREFORK = ("prefork",)
ENDS = [
    End("success", "add", Kind.DONE),
    End("exception", "fail", Kind.FAILED, "ValueError: no such luck\nTraceback"),
    End("exception_with_odd_text", "fail", Kind.FAILED, "\\x00", ("a\x00b\ud800c",)),
    End("wrong_arguments", "add", Kind.FAILED, "TypeError", (1, 2, 3)),
    End("ignore", "ignore", Kind.DONE, "ignored"),
    End("replace", "replaced", Kind.DONE, "ignored"),
    End("second_run_of_what_is_done", "skipped", Kind.DONE, "skipped"),
    End("run_that_met_another_in_its_commit", "met_another_run", Kind.AGAIN, "another run"),
    End("task_that_says_it_is_done", "already_done", Kind.DONE, "skipped"),
    End("reject", "reject", Kind.FAILED, "Reject"),
    End("named_for_all_tasks", "named_for_all", Kind.AGAIN, "NamedForAllError: again, please"),
    End("subclass_of_one_named_for_its_task", "named_for_one", Kind.AGAIN, "SubError"),
    End("named_but_cannot_be_pickled", "named_for_one", Kind.AGAIN, "UnpicklableError", ("unpicklable",)),
    End("own_list_replaces_the_apps", "named_for_one", Kind.FAILED, "NamedForAllError", ("other",)),
    End(
        "named_but_a_chord_waits_for_it",
        "named_for_all",
        Kind.FAILED,
        "NamedForAllError",
        more=(("body", [[], {}, {**EMBED, "chord": {"task": "tests.worker.shop.add", "args": [], "kwargs": {}}}]),),
    ),
    End("hard_limit", "too_long", Kind.FAILED, "TimeLimitExceeded", pools=("prefork", "gevent")),
    End("soft_limit", "softly_too_long", Kind.FAILED, "SoftTimeLimitExceeded", pools=PREFORK),
    End("child_exits", "die", Kind.LOST, "WorkerLostError", pools=PREFORK),
    End("child_killed", "die", Kind.LOST, "WorkerLostError", ("kill",), pools=PREFORK),
    End("sys_exit", "leave", Kind.LOST, "WorkerLostError", pools=("threads", "solo", "gevent")),
    End("sys_exit_of_a_child", "leave", Kind.LOST, "", pools=PREFORK),
    End("hook_of_the_user_raises", "broken_hook", Kind.FAILED, ""),
    End("call_of_the_user", "called", Kind.DONE),
    End("request_of_the_user", "own_request", Kind.FAILED, "ValueError"),
    End("request_of_the_user_by_name", "own_request_by_name", Kind.FAILED, "ValueError"),
    End("strategy_of_the_user", "counted", Kind.DONE),
    End("strategy_of_the_user_fails", "counted_fail", Kind.FAILED, "ValueError"),
    End("one_of_a_batch", "batched", Kind.DONE, "acknowledged by the task's own strategy"),
    End("other_of_a_batch", "batched", Kind.DONE, "acknowledged by the task's own strategy"),
    End("strategy_breaks", "never_run", Kind.FAILED, "the strategy is broken", ("",)),
    End("strategy_acknowledges_and_breaks", "never_run", Kind.FAILED, "the strategy is broken", ("acknowledged",)),
    End("rejected_when_it_fails", "fail_unacknowledged", Kind.FAILED, "ValueError"),
    End("eta_that_comes", "add", Kind.DONE, more=(("headers", soon),)),
    End("eta_that_comes_at_a_rate", "slow_lane", Kind.DONE, more=(("headers", soon),)),
    *(End(f"rate_limited_{n}", "slow_lane", Kind.DONE) for n in range(3)),
    End(
        "retry_when_the_worker_is_lost",
        "die_and_be_retried",
        *((Kind.RETRY, "") if CELERY >= (5, 7) else (Kind.LOST, "WorkerLostError")),
        pools=PREFORK,
    ),
    End("retries_when_the_worker_is_lost_used_up", "die_for_good", Kind.LOST, "WorkerLostError", pools=PREFORK),
    End("task_that_sends_others", "sends_more", Kind.DONE),
    End("unknown_task", "not_there_yet", Kind.UNKNOWN, "not_there_yet"),
    End("expired", "add", Kind.CANCELLED, "expired", more=(("headers", {"expires": "2020-01-01T00:00:00+00:00"}),)),
    End("keyword_arguments_are_no_mapping", "add", Kind.FAILED, "mapping", more=(("body", [[], [1], EMBED]),)),
    End("body_is_no_triple", "add", Kind.FAILED, "", more=(("body", [1]),)),
    End("body_is_a_string", "add", Kind.FAILED, "", more=(("body", "text"),)),
    End("no_id", "add", Kind.FAILED, "KeyError", more=(("drop", ("id",)),)),
    End("id_is_no_string", "add", Kind.FAILED, "", more=(("headers", {"id": [1]}),)),
    End("no_task_name", "add", Kind.FAILED, "", more=(("drop", ("task",)),)),
    End("task_name_is_a_list", "add", Kind.FAILED, "", more=(("headers", {"task": ["a"]}),)),
    End("expires_is_nonsense", "add", Kind.FAILED, "expires", more=(("headers", {"expires": "soon"}),)),
    End("eta_is_nonsense", "add", Kind.FAILED, "ETA", more=(("headers", {"eta": "soon"}),)),
    End(
        "undecodable",
        "add",
        Kind.FAILED,
        "",
        more=(("body", b"{"), ("raw", {"content_type": "application/json", "content_encoding": "utf-8"})),
    ),
    End(
        "refused_content_type",
        "add",
        Kind.FAILED,
        "ContentDisallowed",
        more=(
            ("body", b"x"),
            ("raw", {"content_type": "application/x-python-serialize", "content_encoding": "binary"}),
        ),
    ),
    End(
        "not_even_compressed",
        "add",
        Kind.FAILED,
        "",
        more=(
            ("body", b"x"),
            ("headers", {"compression": "application/x-gzip"}),
            ("raw", {"content_type": "application/json", "content_encoding": "utf-8"}),
        ),
    ),
]
MODES = [Mode(pool, late) for pool in ("prefork", "threads", "solo", "gevent") for late in (False, True)]
CASES = [pytest.param(mode, end, id=f"{mode}-{end.name}") for mode in MODES for end in ENDS if mode.pool in end.pools]


def as_sent(end: End) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in end.more}


class Run(NamedTuple):
    sent: dict[str, Sent]
    desk: Desk
    log: str
    code: int


@pytest.fixture(scope="module")
def runs(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mode], Run]:
    """One worker a mode, with all that it can meet in one go; and what it had reported when it was gone."""

    @functools.cache
    def run(mode: Mode) -> Run:
        url = rabbitmq.url(rabbitmq.create_vhost())
        options = ("-P", mode.pool, "-c", "3")
        with running(tmp_path_factory.mktemp(str(mode)), url, *options, SHOP_LATE=str(int(mode.late))) as (
            worker,
            desk,
        ):
            ends = [end for end in ENDS if mode.pool in end.pools]
            sent = {end.name: desk.send(end.task, *end.args, **as_sent(end)) for end in ends}
            if mode.pool == "prefork":
                sent["too_long_once"] = desk.send("too_long_once")
            sent["requeue"] = desk.send("reject", requeue=True)
            sent["last"] = desk.send("add")
            with contextlib.suppress(AssertionError):  # each test looks for its own
                desk.wait(*sent.values(), within=60)
            code = worker.stop()
            desk.read()
            return Run(sent, desk, worker.text(), code)

    return run


@pytest.mark.parametrize(("mode", "end"), CASES)
def test_each_end_is_reported_once(runs: Callable[[Mode], Run], mode: Mode, end: End) -> None:
    run = runs(mode)
    sent = run.sent[end.name]
    (report,) = run.desk.of(sent)
    assert report.kind is end.kind
    assert report.task_id == sent.task_id or end.name == "id_is_no_string"
    assert end.says in (report.error or "")


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_worker_outlives_all_poison(runs: Callable[[Mode], Run], mode: Mode) -> None:
    run = runs(mode)
    assert run.code == 0, run.log[-3000:]
    assert [report.kind for report in run.desk.of(run.sent["last"])] == [Kind.DONE]
    assert "reporting on a task went wrong" not in run.log


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.late], ids=str)
def test_late_requeue_is_told_and_its_next_run_ends_it(runs: Callable[[Mode], Run], mode: Mode) -> None:
    run = runs(mode)
    kinds = [report.kind for report in run.desk.of(run.sent["requeue"])]
    assert kinds == [Kind.REQUEUED, Kind.DONE]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.pool == "prefork"], ids=str)
def test_requeue_at_the_time_limit_is_told_and_the_next_run_ends_it(runs: Callable[[Mode], Run], mode: Mode) -> None:
    run = runs(mode)
    assert [report.kind for report in run.desk.of(run.sent["too_long_once"])] == [Kind.REQUEUED, Kind.DONE]


@pytest.mark.parametrize("mode", [mode for mode in MODES if not mode.late], ids=str)
def test_early_requeue_is_lost(runs: Callable[[Mode], Run], mode: Mode) -> None:
    run = runs(mode)
    assert [report.kind for report in run.desk.of(run.sent["requeue"])] == [Kind.LOST]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_settlements_travel_in_batches(runs: Callable[[Mode], Run], mode: Mode) -> None:
    run = runs(mode)
    assert len(run.desk.bodies) < len(run.desk.reports)
