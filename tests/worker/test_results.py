"""Celery's own results are what they would be without an outbox; and what is skipped keeps its first result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Celery, states

from outbox_relay.core.settlement import Kind
from tests.worker.harness import running

if TYPE_CHECKING:
    from pathlib import Path


def test_results_are_celerys_own(rabbitmq_url: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    results = f"file://{tmp_path / 'results'}"
    backend = Celery("results", backend=results).backend
    with running(tmp_path, rabbitmq_url, "-c", "2", SHOP_RESULTS=results) as (_, desk):
        done, failed, retried = desk.send("add", 2, 3), desk.send("fail"), desk.send("again", "countdown")
        desk.wait(done, failed, retried)
        assert backend.get_task_meta(done.task_id)["result"] == 5
        assert backend.get_state(failed.task_id) == states.FAILURE
        assert backend.get_state(retried.task_id) == states.RETRY
        second = desk.send("skipped", headers={"id": done.task_id})
        desk.wait(second)
        assert backend.get_state(done.task_id) == states.SUCCESS


def test_child_that_dies_after_its_result_is_stored_is_lost_all_the_same(rabbitmq_url: str, tmp_path: Path) -> None:
    """The end of its chain may not have been sent: only another run can tell."""
    (tmp_path / "results").mkdir()
    results = f"file://{tmp_path / 'results'}"
    with running(tmp_path, rabbitmq_url, "-c", "1", SHOP_RESULTS=results, SHOP_LATE="1") as (_, desk):
        (report,) = desk.wait(desk.send("dies_when_done"))
        assert report.kind is Kind.LOST
