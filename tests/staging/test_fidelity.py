"""What is staged and published later is, byte for byte, what Celery would have sent at once."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import chain, signals
from kombu import Exchange, Queue
from kombu.utils.json import loads

from outbox_relay.core.settlement import HEADER
from outbox_relay.publish.envelope import outgoing
from outbox_relay.publish.publisher import open_publisher
from outbox_relay.publish.receipts import Outcome
from tests.staging.shop import Shop, claimed, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.canvas import Signature

LATER = datetime.now(timezone.utc) + timedelta(hours=3)

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "priority": {"priority": 7},
    "headers": {"headers": {"x-tenant": "acme", "x-list": [1, "zwei", None], "x-deep": {"a": {"b": 1.5}}}},
    "gzip": {"compression": "gzip"},
    "bzip2": {"compression": "bzip2"},
    "pickle": {"serializer": "pickle"},
    "pickle and gzip": {"serializer": "pickle", "compression": "gzip"},
    "queue": {"queue": "slow"},
    "topic exchange": {"queue": "news"},
    "exchange and routing key": {"exchange": "events", "routing_key": "news.sport"},
    "limits": {"time_limit": 30, "soft_time_limit": 20},
    "eta": {"eta": LATER},
    "countdown": {"countdown": 3600},
    "expires": {"expires": LATER},
    "shadow": {"shadow": "a name for the logs"},
    "ignored result": {"ignore_result": True},
    "reply_to": {"reply_to": "somebody"},
    "transient": {"delivery_mode": 1},
    "no retry": {"retry": False},
    "retry policy": {"retry": True, "retry_policy": {"max_retries": 1}},
    "group id": {"group_id": "g1", "group_index": 3},
    "root and parent": {"root_id": "r", "parent_id": "p"},
    "correlation": {"message_id": "m-1", "app_id": "till"},
}
CONF: dict[str, dict[str, Any]] = {
    "protocol 1": {"task_protocol": 1},
    "compressed app": {"task_compression": "gzip"},
    "transient app": {"task_default_delivery_mode": "transient"},
    "priorities": {"task_queue_max_priority": 10, "task_default_priority": 4},
    "events": {"task_send_sent_event": True},
}


def queues() -> list[Queue]:
    events = Exchange("events", type="topic")
    return [Queue("celery"), Queue("slow"), Queue("news", exchange=events, routing_key="news.#")]


@pytest.fixture
def direct_shop(sqlite_url: str, rabbitmq_url: str) -> Iterator[Shop]:
    yield from opened(sqlite_url, broker=rabbitmq_url, task_queues=queues(), task_create_missing_queues=True)


def receive(shop: Shop) -> dict[str, Any]:
    """Take the one message that is in any of the queues, as it came over the wire."""
    with shop.app.connection_for_read() as connection, connection.channel() as channel:
        for queue in list(shop.app.amqp.queues.values()):
            queue(channel).declare()
            message = channel.basic_get(queue.name, no_ack=True)
            if message is not None:
                return {
                    "queue": queue.name,
                    "body": as_bytes(message.body),
                    "headers": dict(message.headers),
                    "properties": {k: v for k, v in message.properties.items() if k != "application_headers"},
                    "exchange": message.delivery_info["exchange"],
                    "routing_key": message.delivery_info["routing_key"],
                }
    raise AssertionError("no message arrived")


def as_bytes(body: str | bytes | memoryview) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


def stage(shop: Shop, signature: Signature) -> None:
    with shop.maker() as session, session.begin():
        shop.outbox.stage(session, signature)


def replay(shop: Shop) -> None:
    """Publish the one staged row, as a relay does."""
    message = outgoing(claimed(shop.row()), shop.outbox.queues, settlement_queue="outbox.settlements.shop")
    publisher = open_publisher(shop.app, events=shop.outbox.events)
    try:
        (receipt,) = publisher.publish([message], timeout=10)
    finally:
        publisher.close()
    assert receipt.outcome is Outcome.CONFIRMED, receipt


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the outbox changes on purpose."""
    message["headers"].pop(HEADER, None)
    if "eta" in message["headers"]:
        message["headers"]["eta"] = None  # due is due
    message["properties"].pop("expiration", None)  # relative: it would start anew with the publish
    return message


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_replayed_row_is_the_message_that_celery_sends(direct_shop: Shop, options: dict[str, Any]) -> None:
    shop = direct_shop
    receive_nothing(shop)
    signature = shop.charge.s(5, amount=3).set(task_id=str(uuid4()), **options)
    signature.apply_async()
    sent = comparable(receive(shop))
    stage(shop, signature)
    replay(shop)
    assert comparable(receive(shop)) == sent


def receive_nothing(shop: Shop) -> None:
    """Declare the queues, so that nothing is unroutable."""
    with pytest.raises(AssertionError):
        receive(shop)


@pytest.mark.parametrize("conf", CONF.values(), ids=CONF.keys())
def test_the_configuration_of_the_app_shapes_the_message(
    sqlite_url: str, rabbitmq_url: str, conf: dict[str, Any]
) -> None:
    for shop in opened(sqlite_url, broker=rabbitmq_url, **conf):
        signature = shop.charge.s(5).set(task_id=str(uuid4()))
        signature.apply_async()
        sent = comparable(receive(shop))
        stage(shop, signature)
        if conf.get("task_protocol") == 1:
            sent["headers"]["retries"] = 0  # a header too, for rows of any protocol
            sent["headers"]["eta"] = None
        replay(shop)
        assert comparable(receive(shop)) == sent


def canvas(shop: Shop) -> dict[str, Signature]:
    charge, anything = shop.charge, shop.anything
    link = charge.s(1).set(task_id="l1")
    stamped = charge.s(1)
    stamped.stamp(colour="red")
    return {
        "link": charge.s(1).set(link=[link]),
        "link_error": charge.s(1).set(link_error=anything.s().set(task_id="e1")),
        "immutable": charge.si(1),
        "chain": chain(charge.s(1).set(task_id="c1"), charge.s(2).set(task_id="c2"), anything.s().set(task_id="c3")),
        "stamps": stamped,
        "map": charge.map([1, 2, 3]),
        "starmap": charge.starmap([(1, 2), (3, 4)]),
        "by name": shop.app.signature("somebody.elses", args=(1,), kwargs={"a": 2}),
        "options of a chain": chain(charge.s(1).set(task_id="c1"), charge.s(2).set(task_id="c2")).set(priority=3),
    }


CANVAS = ("link", "link_error", "immutable", "chain", "stamps", "map", "starmap", "by name", "options of a chain")


@pytest.mark.parametrize("kind", CANVAS)
def test_canvas_that_is_one_message_is_the_message_that_celery_sends(direct_shop: Shop, kind: str) -> None:
    shop = direct_shop
    receive_nothing(shop)
    signature = canvas(shop)[kind].set(task_id=str(uuid4()))
    signature.apply_async()
    sent = comparable(receive(shop))
    stage(shop, signature)
    replay(shop)
    assert comparable(receive(shop)) == sent


def test_what_a_publish_receiver_adds_is_staged(lite_shop: Shop) -> None:
    def receiver(headers: dict[str, Any], **_: Any) -> None:
        headers["traceparent"] = "00-abc"

    signals.before_task_publish.connect(receiver, sender="shop.charge")
    try:
        stage(lite_shop, lite_shop.charge.s(1))
    finally:
        signals.before_task_publish.disconnect(receiver, sender="shop.charge")
    assert loads(lite_shop.row()["headers"])["traceparent"] == "00-abc"


def test_options_of_the_task_and_its_routes_count(sqlite_url: str) -> None:
    for shop in opened(sqlite_url, task_routes={"shop.zipped": {"queue": "money", "priority": 2}}):
        zipped = shop.app.task(name="shop.zipped", compression="zlib", shared=False)(nothing)
        stage(shop, zipped.s())
        row = shop.row()
        assert (row["task_queue"], row["exchange"], row["routing_key"]) == ("money", "", "money")
        assert loads(row["properties"])["priority"] == 2
        assert loads(row["headers"])["compression"] == "application/x-gzip"


def nothing() -> None:
    """Does nothing."""


def test_an_override_of_apply_async_counts(sqlite_url: str) -> None:
    from celery import Task

    class Tagging(Task):  # type: ignore[misc]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            options.setdefault("headers", {})["x-tag"] = "till"
            return super().apply_async(*args, **options)

    for shop in opened(sqlite_url):
        tagged = shop.app.task(name="shop.tagged", base=Tagging, shared=False)(nothing)
        stage(shop, tagged.s())
        assert loads(shop.row()["headers"])["x-tag"] == "till"


def test_the_header_of_another_row_is_not_handed_on(lite_shop: Shop) -> None:
    stage(lite_shop, lite_shop.charge.s(1).set(headers={HEADER: "1;5;0;aa;q", "x": 1}))
    headers = loads(lite_shop.row()["headers"])
    assert HEADER not in headers
    assert headers["x"] == 1


def test_a_delay_on_quorum_queues_is_the_rows_own(sqlite_url: str, rabbitmq_url: str) -> None:
    """Celery would bake the delay into the routing key, and the row wait twice."""
    topic = Exchange("work", type="topic")
    declared = [Queue("q", exchange=topic, routing_key="q", queue_arguments={"x-queue-type": "quorum"})]
    for shop in opened(sqlite_url, broker=rabbitmq_url, task_queues=declared, task_default_queue="q"):
        shop.app.conf.task_default_exchange_type = "topic"
        stage(shop, shop.charge.s(1).set(countdown=600, queue="q"))
        row = shop.row()
        assert (row["task_queue"], row["exchange"], row["routing_key"]) == ("q", "work", "q")
        assert row["visible_after"] - row["created_at"] >= timedelta(seconds=599)


def test_the_memory_transport_carries_the_same(sqlite_url: str) -> None:
    queue = uuid4().hex
    for shop in opened(sqlite_url, broker="memory://", task_default_queue=queue):
        signature = shop.charge.s(5).set(task_id=str(uuid4()), compression="gzip")
        signature.apply_async()
        with shop.app.connection_for_read() as connection, connection.channel() as channel:
            sent = channel._get(queue)
        stage(shop, signature)
        message = outgoing(claimed(shop.row()), shop.outbox.queues, settlement_queue="q")
        assert base64.b64decode(sent["body"]) == message.body
        message.headers.pop(HEADER)
        assert sent["headers"] == message.headers
        assert sent["properties"]["correlation_id"] == message.properties["correlation_id"]
