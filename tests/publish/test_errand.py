"""A connection for one errand."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from celery import Celery

from outbox_relay.errors import PublishError
from outbox_relay.publish.peek import Depths
from outbox_relay.publish.reconnect import errand
from outbox_relay.relay.watch import Watch

AWAY = ("amqp://guest@127.0.0.1:1//", "redis://127.0.0.1:1/0")


@pytest.mark.parametrize("url", AWAY)
def test_a_broker_that_is_away_is_one_error_and_not_waited_for(url: str) -> None:
    app = Celery(broker=url, set_as_current=False)
    began = time.monotonic()
    with pytest.raises(PublishError), errand(app):
        pytest.fail("there is no broker")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("url", AWAY)
def test_nobody_is_known_to_consume_a_queue_while_the_broker_is_away(url: str) -> None:
    app = Celery(broker=url, set_as_current=False)
    watch = Watch(app, Depths(app), timedelta(hours=1), lambda _: None)
    assert watch._ask_workers() == set()


def test_what_an_errand_is_about_reaches_the_workers(broker_url: str) -> None:
    app = Celery(broker=broker_url, set_as_current=False)
    with errand(app) as connection:
        app.control.broadcast("ping", reply=False, connection=connection)
    app.close()
