"""``pause``, ``resume`` and ``holds``; and the whole way of a row that is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import signature

from tests.cli.test_relay import running
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.cli.conftest import Shop


def test_what_is_paused_is_listed_explained_and_resumed(light_shop: Shop) -> None:
    shop = light_shop
    shop.ok("migrate")
    (staged,) = shop.stage("shop.charge", namespace="acme", workflow_id="w")
    paused = shop.ok("pause", "--namespace", "acme", "--reason", "moving house")
    assert "'celery -A shop outbox resume --namespace acme' ends this" in paused.out
    document = shop.ok("pause", "--workflow", "w", "--json").json
    assert (document["scope"], document["value"], document["reason"]) == ("workflow", "w", None)
    shop.ok("pause", "--task", "shop.charge")
    assert [(one["scope"], one["value"], one["reason"]) for one in shop.ok("holds", "--json").json] == [
        ("namespace", "acme", "moving house"),
        ("workflow", "w", None),
        ("task", "shop.charge", None),
    ]
    assert "moving house" in shop.ok("holds").out
    said = shop.ok("explain", staged.task_id).out
    assert "is pending: it is held by namespace acme since 20" in said
    assert " ago (moving house) and by workflow w since " in said
    assert "'celery -A shop outbox resume --namespace acme'" in said
    with shop.outbox_here() as (outbox, _):
        assert [one.value for one in outbox.inspect.holds()] == ["acme", "w", "shop.charge"]
        workflow = outbox.inspect.workflow("w")
        assert workflow is not None
        assert (workflow.held, workflow.total) == (True, 1)
        assert {one.namespace: one.held for one in outbox.inspect.namespaces()} == {"acme": True, "default": False}
        assert "it is held by namespace acme since " in outbox.inspect.explain(staged.task_id)[0].why
    shop.sql("UPDATE outbox_row SET parked = true")
    assert [one["parked"] for one in shop.ok("holds", "--json").json] == [1, 1, 1]
    assert shop.ok("resume", "--task", "shop.charge", "--json").json == {
        "scope": "task",
        "value": "shop.charge",
        "rows": 1,
    }
    assert "namespace acme is resumed" in shop.ok("resume", "--namespace", "acme").out
    refused = shop.outbox("resume", "--namespace", "acme")
    assert (refused.code, "is not paused" in refused.err) == (1, True)
    shop.ok("resume", "--workflow", "w")
    assert shop.ok("holds").out == "nothing is paused\n"


def test_pause_and_resume_take_exactly_one_thing(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    for verb in ("pause", "resume"):
        assert light_shop.outbox(verb).code == 2
        assert "name one thing" in light_shop.outbox(verb, "--task", "t", "--workflow", "w").err


def test_a_paused_namespace_runs_nothing_until_it_is_resumed(big_shop: Shop) -> None:
    """With a relay and a worker as people start them: pause, stage, redrive, resume, done."""
    shop = big_shop
    shop.configure(outbox_heartbeat=0.5, outbox_worker_ttl=3, outbox_run_lease=3, outbox_cache_ttl=0.2)
    shop.ok("migrate")
    charge = signature("shop.charge", args=(1,))
    (failed,) = shop.stage(charge, namespace="acme")
    shop.sql("UPDATE outbox_row SET status = 'failed', error = 'x', settled_at = created_at")
    shop.ok("pause", "--namespace", "acme", "--reason", "moving")
    shop.stage(charge.clone(), namespace="globex")
    shop.stage(charge.clone(), charge.clone(), namespace="acme")
    shop.ok("failed", "redrive", str(failed.row_id), "--yes")
    shop.sql("INSERT INTO outbox_row (namespace, task, args) VALUES ('initech', 'shop.charge', '[1]')")
    with (
        running(shop, "outbox", "relay", until="started on"),
        running(shop, "worker", "--pool", "solo", "--loglevel", "INFO", until="ready."),
    ):
        for name in ("globex", "initech"):  # nobody but a relay registers the latter
            eventually(lambda: states(shop, name) == ["done"], within=30)  # noqa: B023
        eventually(lambda: shop.ok("holds", "--json").json[0]["parked"] == 3, within=30)
        rows = shop.ok("ls", "--namespace", "acme", "--json").json
        assert [(row["status"], row["attempt"], row["claimed_at"]) for row in rows] == [("pending", 0, None)] * 3
        shop.ok("resume", "--namespace", "acme")
        eventually(lambda: states(shop, "acme") == ["done"] * 3, within=30)
    assert shop.ok("holds", "--json").json == []
    seen = {one["namespace"]: one["last_seen_at"] for one in shop.ok("namespace", "ls", "--json").json}
    assert seen.keys() == {"default", "acme", "globex", "initech"}
    assert seen["globex"] is not None


def states(shop: Shop, namespace: str) -> list[str]:
    rows: list[dict[str, Any]] = shop.ok("ls", "--namespace", namespace, "--json").json
    return [row["status"] for row in rows]
