"""What a worker says and refuses as it starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from outbox_relay.outbox import Outbox
from outbox_relay.settings import Settings
from outbox_relay.worker.install import install
from outbox_relay.worker.warnings import warnings_of
from tests.worker.harness import running

if TYPE_CHECKING:
    from pathlib import Path


def texts(pool: str = "prefork", *, queue_lease: float = 3600, conf: dict[str, Any] | None = None, **task: Any) -> str:
    app = Celery("shop", broker="memory://")
    app.conf.update(conf or {})

    @app.task(name="one", shared=False, **task)
    def one() -> None: ...

    settings = {"outbox_database_url": "sqlite://", "outbox_queue_lease": queue_lease}
    return "\n".join(warnings_of(app, pool, Settings.from_conf(settings, main="shop")))


def test_quiet_where_all_is_well() -> None:
    assert texts(acks_late=True) == ""
    assert texts(acks_late=True, time_limit=5) == ""


def test_early_acknowledgement_is_named_with_its_cure() -> None:
    assert "one acknowledge early" in texts()
    assert "task_acks_late = True" in texts()


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_limits_that_a_pool_does_not_enforce_are_named(pool: str) -> None:
    assert f"the {pool} pool does not enforce the time limits of one" in texts(pool, acks_late=True, soft_time_limit=5)
    assert "the time limits of one" in texts(pool, acks_late=True, conf={"task_time_limit": 9})


def test_gevent_enforces_hard_limits_and_no_soft_ones() -> None:
    assert texts("gevent", acks_late=True, time_limit=5) == ""
    assert "the gevent pool does not enforce the soft time limits" in texts("gevent", acks_late=True, soft_time_limit=5)


def test_pool_that_is_not_tested_is_named() -> None:
    assert "use gevent" in texts("eventlet", acks_late=True)


def test_solo_pool_with_a_short_lease_is_named() -> None:
    assert "outbox_queue_lease = 100 s" in texts("solo", queue_lease=100, acks_late=True)


def test_endless_timeouts_and_foreign_strategies_are_named() -> None:
    assert "again and again" in texts(acks_late=True, acks_on_timeout=False)
    assert "strategy of their own" in texts(acks_late=True, Strategy="celery_batches:Strategy")
    assert "for one that is as they start" in texts(Strategy="celery_batches:Strategy")


def test_install_again_changes_nothing() -> None:
    app = Celery("shop", broker="memory://")
    outbox = Outbox(app)
    steps, options = set(app.steps["consumer"]), len(app.user_options["worker"])
    install(outbox)
    assert set(app.steps["consumer"]) == steps
    assert len(app.user_options["worker"]) == options == 2


def test_outbox_can_be_defined_before_the_configuration_is_there() -> None:
    app = Celery("shop")
    app.config_from_object("no.such.module:yet")
    assert Outbox(app).app is app
    assert SimpleNamespace(**{option.name: 1 for option in app.user_options["worker"]}).outbox_node == 1


def test_wrong_setting_is_refused_in_one_line(rabbitmq_url: str, tmp_path: Path) -> None:
    refusal = "outbox: outbox_heartbeat = 0.0 is refused"
    with pytest.raises(RuntimeError, match=refusal) as caught, running(tmp_path, rabbitmq_url, SHOP_HEARTBEAT="0"):
        pass
    assert "Traceback" not in str(caught.value)
