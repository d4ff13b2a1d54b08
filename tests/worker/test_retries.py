"""A task's retry goes back to its row: what the task asked for is reported, and nothing goes to the broker."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from amqp.exceptions import NotFound

from outbox_relay.core.settlement import Kind, Retried, Settlement
from tests.worker.harness import Desk, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import RabbitMQ

EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
LINKED = {**EMBED, "callbacks": [{"task": "tests.worker.shop.add", "args": [], "kwargs": {}, "options": {}}]}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "countdown": {},
    "args": {},
    "queue": {},
    "headers": {"headers": {"x-yours": "before"}},
    "priority": {},
    "exc": {},
    "no_throw": {"body": [["no_throw"], {}, LINKED]},
    "no_throw_fail": {},
    "swallowed": {},
    "by_hand": {},
    "used_up": {},
    "unicode": {"body": [["plain"], {"note": "naïve ☃"}, EMBED]},
    "compressed": {"raw": {"compression": "gzip"}, "body": [["plain"], {"note": "x" * 1000}, EMBED]},
    "compressed_args": {"raw": {"compression": "gzip"}, "body": [["args"], {"note": "x" * 1000}, EMBED]},
    "third": {"headers": {"retries": 2}, "body": [["plain"], {}, EMBED]},
    "fourth": {"headers": {"retries": 3}, "body": [["plain"], {}, EMBED]},
}
MODES = [("prefork", False), ("prefork", True), ("threads", False), ("solo", True), ("gevent", True)]


class Run(NamedTuple):
    reports: dict[str, list[Settlement]]
    desk: Desk
    published: list[str]


@pytest.fixture(scope="module")
def runs(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, bool]], Run]:
    @functools.cache
    def run(mode: tuple[str, bool]) -> Run:
        pool, late = mode
        url = rabbitmq.url(rabbitmq.create_vhost())
        folder = tmp_path_factory.mktemp(f"{pool}-{late}")
        with running(folder, url, "-P", pool, "-c", "2", SHOP_LATE=str(int(late))) as (worker, desk):
            sent = {form: desk.send("again", form, **options) for form, options in FORMS.items()}
            sent["auto"] = desk.send("auto")
            sent["auto_third"] = desk.send("auto", headers={"retries": 2})
            sent["nested"] = desk.send("nested")
            desk.wait(*sent.values(), within=30)
            worker.stop()
            desk.read()
            published = []
            for queue in ("celery", "elsewhere"):
                with contextlib.suppress(NotFound):
                    published += [queue] * desk.depth(queue)
            return Run({form: desk.of(one) for form, one in sent.items()}, desk, published)

    return run


@pytest.fixture(params=MODES, ids=lambda mode: f"{mode[0]}-{'late' if mode[1] else 'early'}")
def run(request: pytest.FixtureRequest, runs: Callable[[tuple[str, bool]], Run]) -> Run:
    return runs(request.param)


def retried(run: Run, form: str) -> Retried:
    (report,) = run.reports[form]
    assert report.kind is Kind.RETRY
    assert report.retried is not None
    return report.retried


def test_nothing_of_a_retry_reaches_the_broker(run: Run) -> None:
    assert run.published == []


def test_plain_retry_keeps_everything(run: Run) -> None:
    assert retried(run, "plain") == Retried(delay=7.0, retries=1)
    assert retried(run, "countdown") == Retried(delay=90.0, retries=1)
    assert retried(run, "exc") == Retried(delay=1.0, retries=1)
    assert retried(run, "unicode") == Retried(delay=7.0, retries=1)
    assert retried(run, "compressed") == Retried(delay=7.0, retries=1)
    assert retried(run, "third") == Retried(delay=7.0, retries=3)


def test_retry_without_a_raise_wins_over_the_return_and_over_a_failure(run: Run) -> None:
    for form in ("no_throw", "no_throw_fail", "swallowed"):
        assert retried(run, form) == Retried(delay=2.0, retries=1)


def test_retry_raised_by_hand_is_a_retry(run: Run) -> None:
    assert retried(run, "by_hand") == Retried(delay=5.0, retries=1)


def test_autoretry_backs_off(run: Run) -> None:
    assert retried(run, "auto") == Retried(delay=3.0, retries=1)
    assert retried(run, "auto_third") == Retried(delay=12.0, retries=3)


def test_changed_arguments_travel(run: Run) -> None:
    change = retried(run, "args")
    assert (change.delay, change.retries, change.content_type, change.task_queue) == (0, 1, "application/json", None)
    assert json.loads(change.body or b"") == [["countdown"], {"note": "naïve"}, EMBED]
    headers = json.loads(change.headers or b"")
    assert headers["argsrepr"] == "('countdown',)"
    assert headers["eta"] is None
    assert "x-outbox" not in headers
    assert "compression" not in json.loads(retried(run, "compressed_args").headers or b"")


def test_changed_queue_travels(run: Run) -> None:
    change = retried(run, "queue")
    assert (change.task_queue, change.exchange, change.routing_key) == ("elsewhere", "", "elsewhere")
    assert change.body is None
    assert change.headers is None


def test_changed_headers_travel_without_our_own(run: Run) -> None:
    headers = json.loads(retried(run, "headers").headers or b"")
    assert headers["x-mine"] == "yes"
    assert "x-yours" not in headers
    assert "x-outbox" not in headers
    assert headers["origin"] == "gen1@test"
    assert headers["parent_id"] is None


def test_changed_priority_travels(run: Run) -> None:
    change = retried(run, "priority")
    assert json.loads(change.properties or b"")["priority"] == 4
    assert change.headers is None


def test_retries_used_up_is_a_failure(run: Run) -> None:
    for form in ("used_up", "fourth"):
        (report,) = run.reports[form]
        assert report.kind is Kind.FAILED
        assert "MaxRetriesExceededError" in (report.error or "")


def test_retry_of_a_task_called_inside_is_not_this_tasks_own(run: Run) -> None:
    assert [report.kind for report in run.reports["nested"]] == [Kind.DONE]
