"""What ``check`` says about an app's configuration, each with its cure."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from outbox_relay import Outbox
from outbox_relay.cli.advice import Level, advise

BASE = {"outbox_enabled": True, "outbox_database_url": "sqlite:///unused.db", "task_acks_late": True}
SAFE = {"worker_cancel_long_running_tasks_on_connection_loss": True, "task_time_limit": 600}
AMQP, REDIS = "amqp://localhost//", "redis://localhost/0"


def advice(broker: str, **conf: Any) -> list[str]:
    """Everything but what is fine, with the cures."""
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update({**BASE, **conf})
    outbox = Outbox(app)

    @app.task(name="a.charge", shared=False)  # the first by name: the demo's tasks are shared with every app
    def charge() -> None:
        pass

    app.finalize()
    found = advise(app, outbox.settings)
    assert all(one.level is not Level.OK for one in found)
    return [f"{one.text} {one.cure}" for one in found]


@pytest.mark.parametrize("broker", [AMQP, REDIS, "embedded:///broker"])
def test_nothing_is_said_of_an_app_that_is_well_configured(broker: str) -> None:
    assert advice(broker, **SAFE) == []


@pytest.mark.parametrize(
    ("broker", "conf", "says"),
    [
        (AMQP, {**SAFE, "task_time_limit": None}, "consumer_timeout"),
        (AMQP, {**SAFE, "task_time_limit": 7200}, "time_limit below 1800"),
        (AMQP, {"task_time_limit": 600}, "worker_cancel_long_running_tasks_on_connection_loss"),
        (REDIS, {"task_time_limit": None}, "visibility timeout of 3600 s"),
        (
            REDIS,
            {"task_time_limit": 600, "broker_transport_options": {"visibility_timeout": 300}},
            "time_limit below 300",
        ),
        (AMQP, {**SAFE, "task_acks_late": False}, "acknowledge early"),
        (AMQP, {**SAFE, "task_acks_on_failure_or_timeout": False}, "again and again"),
        (AMQP, {**SAFE, "worker_pool": "threads"}, "does not enforce the time limits"),
        (AMQP, {**SAFE, "task_always_eager": True}, "task_always_eager"),
        ("memory://", SAFE, "one process"),
        ("filesystem://", SAFE, "embedded:///"),
        (AMQP, {**SAFE, "task_queues": [Queue("q", queue_arguments={"x-queue-type": "quorum"})]}, "prefetch"),
        (
            AMQP,
            {**SAFE, "task_queues": [Queue("q", queue_arguments={"x-dead-letter-exchange": "d"})]},
            "dead-letter",
        ),
        (AMQP, {**SAFE, "task_queues": [Queue("q", queue_arguments={"x-message-ttl": 60_000})]}, "after 60 s"),
        (AMQP, {**SAFE, "task_queues": [Queue("q", queue_arguments={"x-max-length": 5})]}, "reject-publish"),
    ],
)
def test_each_hazard_is_named_with_its_cure(broker: str, conf: dict[str, Any], says: str) -> None:
    said = advice(broker, **conf)
    assert any(says in one for one in said), said
    assert "a.charge" in said[0] or "queue" in said[0] or "task_always_eager" in said[0] or "://" in said[0]
