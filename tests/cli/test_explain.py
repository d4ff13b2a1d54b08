"""``explain``, asked of rows in every place that they can be in."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from celery import signature

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

PUBLISHED = (
    "UPDATE outbox_row SET status = 'claimed', claimed_at = created_at, published_at = created_at, "
    "published_to = :queue, lease_until = created_at, claimed_by = :by, claim_token = :by WHERE id = :id"
)


def test_a_row_is_explained_by_any_of_its_keys_from_staged_to_cancelled(shop: Shop) -> None:
    shop.ok("migrate")
    due, later = shop.stage("shop.charge", signature("shop.charge", countdown=3600), dispatch_key=None)
    for key in (str(due.row_id), due.task_id, due.dispatch_key):
        said = shop.ok("explain", key).out
        assert said.startswith(f"row {due.row_id} (shop.charge) is pending: it has been due for ")
        assert said.endswith("no relay lives that would claim it; start one: 'celery -A shop outbox relay'\n")
    assert "is pending: it is not due until " in shop.ok("explain", later.task_id).out
    shop.ok("cancel", later.task_id, "--yes")
    assert " because cancelled by an operator\n" in shop.ok("explain", later.task_id).out
    assert shop.outbox("explain", "nobody").code == 1


def test_an_explanation_as_json_has_its_parts(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    (staged,) = light_shop.stage("shop.charge")
    light_shop.sql("UPDATE outbox_row SET status = 'failed', error = :error", error="ValueError: no\nTraceback")
    document = light_shop.ok("explain", staged.task_id, "--json").json
    assert (document["id"], document["task_id"], document["status"]) == (staged.row_id, staged.task_id, "failed")
    assert document["why"] == "it failed because ValueError: no"
    assert document["moves"] == f"'celery -A shop outbox failed redrive {staged.row_id}' runs it again"
    assert document["explanation"].endswith(f"{document['why']}; {document['moves']}")


def test_a_dormant_outbox_is_named_as_the_reason(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    (staged,) = light_shop.stage("shop.charge")
    light_shop.configure(outbox_enabled=False)
    assert "dormant" in light_shop.ok("explain", staged.task_id).err


def test_the_broker_is_asked_for_the_queue_that_a_row_waits_in(big_shop: Shop) -> None:
    big_shop.ok("migrate")
    waits, lost = big_shop.stage("shop.charge", "shop.charge")
    for row, queue in ((waits, "celery"), (lost, "gone")):
        big_shop.sql(PUBLISHED, id=row.row_id, queue=queue, by=uuid4())
    with big_shop.outbox_here() as (outbox, _), outbox.app.connection_for_write() as connection:
        producer = outbox.app.amqp.Producer(connection)
        for _ in range(3):
            producer.publish({}, routing_key="celery", exchange="", declare=[outbox.queues.queue("celery")])
    said = big_shop.ok("explain", waits.task_id).out
    assert "it was published to the queue celery " in said
    assert "waits there behind 2 messages at most; nobody consumes that queue: start a worker for it" in said
    said = big_shop.ok("explain", lost.task_id).out
    assert "the broker has no such queue any more" in said
    assert "'celery -A shop outbox rearm --queue gone' publishes it again at once" in said
    big_shop.configure(broker="amqp://guest:guest@127.0.0.1:9//")
    assert "the broker cannot be asked" in big_shop.ok("explain", waits.task_id).out


def test_hostile_text_in_an_explanation_does_nothing(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    (staged,) = light_shop.stage("shop.\x1b[31mevil")
    light_shop.sql("UPDATE outbox_row SET status = 'failed', error = :error", error="\x1b[2J\u202egone")
    out = light_shop.ok("explain", staged.task_id).out
    assert "\x1b" not in out
    assert "\u202e" not in out
