"""Which queue a row goes to, and how it is declared."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from outbox_relay.errors import PublishError, SettingsError
from outbox_relay.events import Events
from outbox_relay.publish.queues import Queues, beacons_for, settlements_queue
from outbox_relay.settings import Settings
from outbox_relay.worker.subscriptions import Subscriptions
from tests.publish.bench import make_app


def queues(**conf: Any) -> Queues:
    app = make_app("memory://", **conf)
    return Queues(app, Settings.from_conf(app.conf, main=app.main))


def declared(queue: Queue) -> dict[str, Any]:
    return {"name": queue.name, "durable": queue.durable, "arguments": queue.queue_arguments or {}}


def test_a_plain_row_keeps_the_apps_exchange_and_routing_key() -> None:
    media = Queue("video", Exchange("media", type="topic"), "video.#", queue_arguments={"x-max-length": 9})
    target = queues(task_queues=[media]).target("default", "video", None, "media", "video.hd")
    assert (target.exchange, target.routing_key) == ("media", "video.hd")
    assert target.queue.name == "video"
    assert target.queue.exchange.name == "media"
    assert target.queue.queue_arguments == {"x-max-length": 9}


def test_every_other_row_goes_through_the_default_exchange() -> None:
    ours = queues()
    for node, namespace, name in (
        (None, "acme", "acme:work"),
        ("b", "acme", "acme:work@b"),
        ("b", "default", "work@b"),
    ):
        target = ours.target(namespace, "work", node, "media", "video.hd")
        assert (target.queue.name, target.exchange, target.routing_key) == (name, "", name)
        assert declared(target.queue) == {"name": name, "durable": True, "arguments": {}}


def test_namespaces_can_share_the_task_queues_own_queue() -> None:
    ours = queues(outbox_namespace_queues=False)
    assert ours.target("acme", "work").queue.name == "work"
    assert ours.target("acme", "work", "box-7").queue.name == "work@box-7"


def test_queues_of_namespaces_and_nodes_are_of_the_default_type() -> None:
    assert queues(task_default_queue_type="quorum").target("acme", "work").queue.queue_arguments == {
        "x-queue-type": "quorum"
    }


def test_a_queue_that_the_app_declares_keeps_its_arguments_also_for_a_namespace() -> None:
    own = Queue("acme:work", queue_arguments={"x-max-length": 5})
    ours = queues(task_queues=[Queue("work"), own], task_default_queue_type="quorum")
    assert ours.target("acme", "work").queue.queue_arguments == {"x-max-length": 5}


def test_priorities_of_the_app_hold_for_every_queue() -> None:
    ours = queues(task_queue_max_priority=10)
    for target in (ours.target("acme", "work"), ours.target("default", "elsewhere"), ours.target("default", "work")):
        assert target.queue.queue_arguments["x-max-priority"] == 10


def test_a_plain_queue_that_the_app_does_not_declare_is_as_celery_would_make_it() -> None:
    """A stock worker started with -Q declares it as well, and the two have to agree."""
    app = make_app("memory://")
    ours = Queues(app, Settings.from_conf(app.conf, main=app.main))
    mine = ours.target("default", "reports").queue
    assert "reports" not in app.amqp.queues, "looking at a queue must not make a worker consume it"
    celerys = app.amqp.queues["reports"]
    assert declared(mine) == declared(celerys)
    assert (mine.exchange.name, mine.exchange.type, mine.routing_key) == (
        celerys.exchange.name,
        celerys.exchange.type,
        celerys.routing_key,
    )


def test_the_name_of_a_queue_does_not_grow_from_one_publish_to_the_next() -> None:
    ours = queues()
    assert {ours.target("acme", "work", "box-7").routing_key for _ in range(15)} == {"acme:work@box-7"}


@pytest.mark.parametrize(
    ("namespace", "queue", "node"),
    [
        ("acme", "a:b", None),
        ("acme", "a@b", None),
        ("acme", "é" * 130, None),
        ("no space", "a", None),
        ("a", "q", "𝄞" * 70),
    ],
)
def test_a_route_without_a_queue_name_is_refused(namespace: str, queue: str, node: str | None) -> None:
    with pytest.raises(PublishError):
        queues().target(namespace, queue, node)


def test_the_outboxs_own_queues_are_durable_and_classic_and_bear_its_name() -> None:
    ours = queues(outbox_name="till", task_default_queue_type="quorum")
    for queue, name in (
        (ours.settlements, "outbox.settlements.till"),
        (ours.beacons, "outbox.beacons.till"),
        (ours.relay, "outbox.relay.till"),
    ):
        assert declared(queue) == {"name": name, "durable": True, "arguments": {"x-queue-type": "classic"}}
    assert declared(settlements_queue("outbox.settlements.till")) == declared(ours.settlements)
    assert declared(beacons_for("outbox.settlements.till")) == declared(ours.beacons)


def test_a_queue_that_is_none_of_an_outbox_has_no_beacons() -> None:
    with pytest.raises(PublishError, match="not a settlement queue"):
        beacons_for("celery")


def test_an_outbox_name_that_no_queue_could_bear_is_refused() -> None:
    with pytest.raises(SettingsError, match="1 to 100 ASCII letters"):
        queues(outbox_name="é" * 120)


def test_many_routes_do_not_fill_the_memory() -> None:
    ours = queues()
    for number in range(10_050):
        ours.target("default", "work", None, "events", f"key.{number}")
    assert len(ours._targets) <= 10_000


@pytest.mark.parametrize("first", ["relay", "worker"])
@pytest.mark.parametrize("conf", [{}, {"task_default_queue_type": "quorum"}, {"task_queue_max_priority": 5}])
@pytest.mark.parametrize("separate", [True, False])
def test_relay_and_worker_declare_every_queue_alike(
    rabbitmq_url: str, first: str, conf: dict[str, Any], *, separate: bool
) -> None:
    """A broker refuses a second declaration that differs from the first."""
    conf = {"task_queues": [Queue("work"), Queue("acme:own", queue_arguments={"x-max-length": 9})], **conf}
    conf["outbox_namespace_queues"] = separate
    routes = [(ns, queue, node) for ns in ("default", "acme") for queue in ("work", "own") for node in (None, "box-7")]

    def as_relay() -> list[Queue]:
        app = make_app(rabbitmq_url, **conf)
        ours = Queues(app, Settings.from_conf(app.conf, main=app.main))
        return [ours.target(*route).queue for route in routes]

    def as_worker() -> list[Queue]:
        app = make_app(rabbitmq_url, **conf)
        app.amqp.queues.select(["work", "own"])
        settings = Settings.from_conf(app.conf, main=app.main)
        namespaces = "default,acme" if separate else None
        Subscriptions(app, Queues(app, settings), Events(), node="box-7", namespaces=namespaces, separate=separate)
        return list(app.amqp.queues.consume_from.values())

    with Connection(rabbitmq_url) as connection:
        declared: dict[str, set[str]] = {}
        for who, queues in sorted((("relay", as_relay()), ("worker", as_worker())), key=lambda one: one[0] != first):
            for queue in queues:
                with connection.channel() as channel:
                    queue(channel).declare()
                declared.setdefault(who, set()).add(queue.name)
    assert declared["relay"] == declared["worker"]
    assert len(declared["relay"]) == (8 if separate else 4)
