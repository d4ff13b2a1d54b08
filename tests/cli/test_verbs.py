"""Every verb, run as a process of its own on each database: what it says, what it does, how it ends."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from celery import signature

from outbox_relay.store.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

HOSTILE = "shop.\x1b[31m[red]evil[/red]"
TRACEBACK = "ValueError: card refused\nTraceback (most recent call last):\n  \x1b[2Jline [bold]two[/bold]"


@pytest.fixture
def ready(shop: Shop) -> Shop:
    shop.ok("migrate")
    return shop


def fail(shop: Shop, row_id: int, error: str = TRACEBACK) -> None:
    shop.sql(
        "UPDATE outbox_row SET status = 'failed', error = :error, attempt = 3, failures = 3, "
        "settled_at = created_at WHERE id = :id",
        id=row_id,
        error=error,
    )


def test_migrate_makes_the_tables_and_may_be_repeated(shop: Shop) -> None:
    first, again = shop.ok("migrate"), shop.ok("migrate")
    assert first.out == again.out
    assert f"version {SCHEMA_VERSION}" in first.out
    assert shop.ok("ls").out == "no rows\n"


def test_migrate_sql_prints_the_statements_and_touches_nothing(shop: Shop) -> None:
    printed = shop.ok("migrate", "--sql").out
    assert "CREATE TABLE outbox_row" in printed
    assert shop.outbox("status").code == 1


def test_check_is_content_with_a_shop_that_is_well(ready: Shop) -> None:
    result = ready.ok("check")
    assert "fault" not in result.out
    document = ready.ok("check", "--json").json
    assert document["ok"] is True
    assert {one["subject"] for one in document["findings"]} >= {"settings", "database", "tables", "broker"}


def test_check_names_every_fault_with_its_cure(shop: Shop) -> None:
    shop.configure(broker="amqp://guest:guest@127.0.0.1:9//")
    result = shop.outbox("check", "--json")
    assert result.code == 1
    faults = {one["subject"]: one["cure"] for one in result.json["findings"] if one["level"] == "fault"}
    assert set(faults) == {"tables", "broker"}
    assert "celery -A shop outbox migrate" in faults["tables"]
    assert "broker_url" in faults["broker"]


def test_status_counts_rows_and_says_when_nobody_works(ready: Shop) -> None:
    ready.stage("shop.charge", "shop.charge", signature("shop.charge", countdown=3600))
    result = ready.ok("status")
    assert "3  (2 due, 1 delayed)" in result.out
    assert "no relay lives" in result.err
    document = ready.ok("status", "--json").json
    assert document["rows"] | {"oldest_due_seconds": 0} == {
        "pending": 3,
        "due": 2,
        "delayed": 1,
        "parked": 0,
        "claimed": 0,
        "done": 0,
        "failed": 0,
        "cancelled": 0,
        "oldest_due_seconds": 0,
    }
    assert (document["relays"], document["workers"]) == ([], [])


def test_status_tells_of_reports_that_could_not_be_applied(ready: Shop) -> None:
    assert ready.ok("status", "--json").json["set_aside"] == 0
    for _ in range(2):
        ready.sql("INSERT INTO outbox_aside (body, reason, created_at) VALUES ('x', 'no row', CURRENT_TIMESTAMP)")
    assert "2 reports of workers could not be applied: see outbox_aside" in ready.ok("status").err
    assert ready.ok("status", "--json").json["set_aside"] == 2


def test_ls_filters_and_says_when_there_is_more(ready: Shop) -> None:
    ready.stage("shop.charge", "shop.charge", "shop.mail", namespace="acme")
    ready.stage("shop.mail")
    assert len(ready.ok("ls", "--json").json) == 4
    assert [one["task"] for one in ready.ok("ls", "--namespace", "acme", "--task", "shop.mail", "--json").json] == [
        "shop.mail"
    ]
    assert ready.ok("ls", "--status", "done", "--json").json == []
    short = ready.ok("ls", "--limit", "1")
    assert "there are more" in short.err
    assert len(short.out.splitlines()) == 2


def test_ls_json_has_the_columns_names_and_times_in_utc(ready: Shop) -> None:
    (staged,) = ready.stage("shop.charge", workflow_id="w", ordinal=7)
    (row,) = ready.ok("ls", "--json").json
    assert (row["id"], row["task_id"], row["dispatch_key"]) == (staged.row_id, staged.task_id, staged.dispatch_key)
    assert (row["status"], row["workflow_id"], row["ordinal"], row["due"]) == ("pending", "w", 7, True)
    for name in ("created_at", "visible_after"):
        assert datetime.fromisoformat(row[name]).utcoffset() == timedelta(0)
    assert "body" not in row


def test_show_takes_a_row_id_a_task_id_or_a_dispatch_key(ready: Shop) -> None:
    (staged,) = ready.stage("shop.charge", dispatch_key="order/1")
    for key in (str(staged.row_id), staged.task_id, "order/1"):
        assert ready.ok("show", key, "--json").json["id"] == staged.row_id
    assert staged.task_id in ready.ok("show", "order/1").out
    missing = ready.outbox("show", "order/2")
    assert (missing.code, missing.out) == (1, "")
    assert "order/2" in missing.err


def test_a_key_that_several_namespaces_have_is_refused_with_their_ids(ready: Shop) -> None:
    ids = [ready.stage("shop.charge", dispatch_key="k", namespace=one)[0].row_id for one in ("a", "b")]
    result = ready.outbox("show", "k")
    assert result.code == 1
    assert all(str(one) in result.err for one in ids)


def test_hostile_text_is_shown_and_does_nothing(ready: Shop) -> None:
    (staged,) = ready.stage(HOSTILE)
    fail(ready, staged.row_id)
    key = str(staged.row_id)
    for arguments in (("ls",), ("show", key), ("failed", "ls"), ("failed", "show", key)):
        result = ready.ok(*arguments)
        assert "\x1b" not in result.out
        assert r"\x1b[31m[red]evil[/red]" in result.out
    assert "[bold]two[/bold]" in ready.ok("show", key).out
    asked = ready.outbox("failed", "redrive", key)
    assert "\x1b" not in asked.err


def test_cancel_ends_rows_that_are_pending(ready: Shop) -> None:
    (staged,) = ready.stage("shop.charge")
    refused = ready.outbox("cancel", str(staged.row_id))
    assert refused.code == 2
    assert "--yes" in refused.err
    assert ready.ok("show", staged.task_id, "--json").json["status"] == "pending"
    assert "cancelled 1 row" in ready.ok("cancel", str(staged.row_id), "--yes").out
    assert ready.ok("show", staged.task_id, "--json").json["status"] == "cancelled"
    assert ready.outbox("cancel", str(staged.row_id), "--yes").code == 1


def test_cancel_of_a_workflow_ends_all_of_its_rows(ready: Shop) -> None:
    ready.stage("shop.charge", workflow_id="w", ordinal=0)
    ready.stage("shop.charge", workflow_id="w", ordinal=1)
    ready.stage("shop.charge", workflow_id="other", ordinal=0)
    assert "cancelled 2 rows" in ready.ok("cancel", "--workflow", "w", "--yes").out
    assert ready.outbox("cancel").code == 2
    assert ready.outbox("cancel", "--workflow", "nobody", "--yes").code == 1


def test_dead_letters_are_listed_shown_redriven_and_discarded(ready: Shop) -> None:
    staged = ready.stage("shop.charge", "shop.charge", "shop.mail", "shop.mail")
    for one in staged[:3]:
        fail(ready, one.row_id)
    first, second, third = (str(one.row_id) for one in staged[:3])
    assert len(ready.ok("failed", "ls", "--json").json) == 3
    assert [one["id"] for one in ready.ok("failed", "ls", "--task", "shop.mail", "--json").json] == [int(third)]
    assert "line [bold]two[/bold]" in ready.ok("failed", "show", first).out
    assert ready.outbox("failed", "show", str(staged[3].row_id)).code == 1

    assert ready.outbox("failed", "redrive").code == 2
    assert ready.outbox("failed", "redrive", first).code == 2
    assert ready.outbox("failed", "redrive", first, "--all", "--yes").code == 2
    assert ready.outbox("failed", "redrive", str(staged[3].row_id), "--yes").code == 1
    assert "redriven 1 row" in ready.ok("failed", "redrive", first, "--yes").out
    again = ready.ok("show", first, "--json").json
    assert (again["status"], again["attempt"], again["failures"]) == ("pending", 0, 0)

    assert "discarded 1 row" in ready.ok("failed", "discard", "--task", "shop.mail", "--yes").out
    assert ready.outbox("show", third).code == 1
    assert "redriven 1 row" in ready.ok("failed", "redrive", "--error", "card refused", "--yes").out
    assert ready.ok("show", second, "--json").json["status"] == "pending"
    assert ready.outbox("failed", "redrive", "--all", "--yes").code == 1


def test_prune_deletes_what_ended_long_ago(ready: Shop) -> None:
    old, new = ready.stage("shop.charge", "shop.charge")
    ready.sql("UPDATE outbox_row SET status = 'done', settled_at = created_at")
    ready.sql("UPDATE outbox_row SET settled_at = '2020-01-01 00:00:00.000' WHERE id = :id", id=old.row_id)
    assert "pruned 1 row\n" in ready.ok("prune").out
    assert [one["id"] for one in ready.ok("ls", "--json").json] == [new.row_id]


def test_rearm_asks_the_relays(ready: Shop) -> None:
    assert "asked" in ready.ok("rearm").out
    with ready.outbox_here() as (outbox, _), outbox.app.connection_for_read() as connection:
        message = outbox.queues.relay(connection.default_channel).get(no_ack=True)
        assert message.headers["task"] == "outbox_relay.rearm"


def test_rows_are_listed_with_the_brokers_queue(ready: Shop) -> None:
    """By which 'rearm --queue' means them."""
    (acme,) = ready.stage("shop.charge", namespace="acme")
    (pinned,) = ready.stage("shop.charge", namespace="acme", node="box-7")
    (plain,) = ready.stage("shop.charge")
    (sent,) = ready.stage("shop.charge")
    ready.sql("UPDATE outbox_row SET published_to = 'elsewhere' WHERE id = :id", id=sent.row_id)
    listed = {row["id"]: row["queue"] for row in ready.ok("ls", "--json").json}
    assert listed == {
        acme.row_id: "acme:celery",
        pinned.row_id: "acme:celery@box-7",
        plain.row_id: "celery",
        sent.row_id: "elsewhere",
    }
    assert "acme:celery@box-7" in ready.ok("ls").out
    assert ready.ok("show", str(acme.row_id), "--json").json["queue"] == "acme:celery"
    assert re.search(r"^queue +acme:celery$", ready.ok("show", str(acme.row_id)).out, re.MULTILINE)


def test_a_dead_letter_says_where_it_failed(ready: Shop) -> None:
    (staged,) = ready.stage("shop.charge")
    fail(ready, staged.row_id)
    worker = uuid4()
    ready.sql(
        "INSERT INTO outbox_worker (instance, hostname, pool, namespaces, queues, held, started_at, last_seen_at) "
        "SELECT :instance, 'w1@vm', 'prefork', 'all', '[]', 0, created_at, created_at FROM outbox_row",
        instance=worker.hex if "sqlite" in ready.database else worker,
    )
    ready.sql("UPDATE outbox_row SET published_to = 'celery', worker = :worker", worker=str(worker))
    shown = ready.ok("failed", "show", str(staged.row_id), "--json").json
    assert (shown["worker"], shown["worker_hostname"], shown["queue"]) == (str(worker), "w1@vm", "celery")


def test_rearm_of_a_queue_that_nobody_knows_says_what_may_be_meant(ready: Shop) -> None:
    (staged,) = ready.stage("shop.charge", namespace="acme", task_queue="mail")
    ready.sql(
        "UPDATE outbox_row SET status = 'claimed', claim_token = :token, claimed_at = created_at, claimed_by = :token, "
        "published_at = created_at, published_to = 'acme:mail', lease_until = created_at WHERE id = :id",
        token=uuid4().hex,
        id=staged.row_id,
    )
    for wrong, hint in (("mail", "acme:mail"), ("acme:mial", "acme:mail"), ("zzz", "'ls' names each row's queue")):
        result = ready.outbox("rearm", "--queue", wrong, "--yes")
        assert result.code == 1
        assert f"queue named {wrong}" in result.err
        assert hint in result.err
    assert "re-armed 1 row of" in ready.ok("rearm", "--queue", "acme:mail", "--yes").out


def test_rearm_of_a_lost_queue_makes_its_rows_pending(ready: Shop) -> None:
    lost, elsewhere = ready.stage("shop.charge", "shop.charge")
    for one, queue in ((lost, "celery"), (elsewhere, "other")):
        ready.sql(
            "UPDATE outbox_row SET status = 'claimed', claim_token = :token, claimed_at = created_at, "
            "published_at = created_at, published_to = :queue, lease_until = '2099-01-01 00:00:00.000' WHERE id = :id",
            token=uuid4() if ready.database.startswith("postgresql") else uuid4().hex,
            queue=queue,
            id=one.row_id,
        )
    assert ready.outbox("rearm", "--queue", "celery").code == 2
    assert "re-armed 1 row of" in ready.ok("rearm", "--queue", "celery", "--yes").out
    assert ready.ok("show", str(lost.row_id), "--json").json["status"] == "pending"
    assert ready.ok("show", str(elsewhere.row_id), "--json").json["status"] == "claimed"


def test_workers_are_told_where_none_has_reported(ready: Shop) -> None:
    assert "no worker" in ready.ok("workers").out
    assert ready.ok("workers", "--json").json == []
