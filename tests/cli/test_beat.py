"""Beat: the outbox's entries join the shop's schedule, whatever order things are configured in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, ScheduleEntry, Scheduler, Service
from celery.schedules import crontab
from celery.signals import beat_init
from kombu import Connection, Exchange, Queue

from outbox_relay import Outbox, beat
from outbox_relay.publish.queues import own_queue
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

THEIRS = {"nightly": {"task": "shop.nightly", "schedule": crontab(hour="3")}}
CONF = {"outbox_enabled": True, "outbox_database_url": "sqlite:///unused.db"}


class SettingsModule:
    outbox_enabled = True
    outbox_database_url = "sqlite:///unused.db"
    beat_schedule = THEIRS


def _schedule_first(app: Celery) -> None:
    app.conf.beat_schedule = THEIRS
    app.conf.update(CONF)
    Outbox(app)


def _schedule_last(app: Celery) -> None:
    app.conf.update(CONF)
    Outbox(app)
    app.conf.beat_schedule = THEIRS


def _schedule_after_finalisation(app: Celery) -> None:
    app.conf.update(CONF)
    Outbox(app)
    app.finalize()
    assert app.conf.outbox_enabled
    app.conf.beat_schedule = THEIRS


def _from_object_first(app: Celery) -> None:
    app.config_from_object(SettingsModule)
    Outbox(app)


def _from_object_last(app: Celery) -> None:
    Outbox(app)
    app.config_from_object(SettingsModule)


def _by_periodic_task(app: Celery) -> None:
    @app.on_after_finalize.connect
    def add(sender: Celery, **_: Any) -> None:
        sender.add_periodic_task(crontab(hour="3"), sender.signature("shop.nightly"), name="nightly")

    app.conf.update(CONF)
    Outbox(app)
    app.__dict__["kept"] = add  # signals hold their receivers weakly


ORDERS = [
    _schedule_first,
    _schedule_last,
    _schedule_after_finalisation,
    _from_object_first,
    _from_object_last,
    _by_periodic_task,
]


class StoredEntry(ScheduleEntry):
    """An entry that, like django-celery-beat's, turns its options into columns."""

    @classmethod
    def _unpack_options(
        cls,
        queue: str | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
        expire_seconds: float | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        return {"queue": queue, "exchange": exchange, "routing_key": routing_key, "expire_seconds": expire_seconds}


class StoringScheduler(Scheduler):
    """A scheduler that keeps its entries outside of the process, as JSON."""

    Entry = StoredEntry
    stored: dict[str, str]

    def setup_schedule(self) -> None:
        self.stored = {}
        self.update_from_dict(self.app.conf.beat_schedule)

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        for name, entry in dict_.items():
            columns = self.Entry._unpack_options(**entry.get("options", {}))
            self.stored[name] = json.dumps({"task": entry["task"], **columns})
        super().update_from_dict(dict_)


def start_beat(app: Celery, scheduler: type[Scheduler] = Scheduler, **options: Any) -> Any:
    """Do what a beat does before its first tick, and return its scheduler."""
    app.finalize()
    service = Service(app, scheduler_cls=scheduler, **options)
    beat_init.send(sender=service)
    return service.scheduler


@pytest.mark.parametrize("configure", ORDERS)
def test_the_entries_join_the_shops_schedule_in_every_order_of_configuration(configure: Any) -> None:
    app = Celery("shop", set_as_current=False)
    configure(app)
    schedule = start_beat(app).schedule
    assert set(schedule) >= {"nightly", beat.REARM, beat.PRUNE}
    assert schedule["nightly"].task == "shop.nightly"
    assert schedule[beat.REARM].schedule.run_every == timedelta(seconds=15)


def test_the_entries_are_addressed_to_the_relays_own_queue_and_expire_with_their_interval() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(CONF, outbox_rearm_interval=20, task_routes={"*": {"queue": "theirs", "exchange": "x"}})
    outbox = Outbox(app)
    entry = start_beat(app).schedule[beat.REARM]
    assert entry.options["expires"] == 20
    options = app.amqp.router.route(dict(entry.options), entry.task)
    assert options["queue"] is outbox.queues.relay
    assert (options["exchange"], options["routing_key"]) == ("", "outbox.relay.shop")


def test_a_scheduler_that_stores_its_entries_elsewhere_is_given_them_in_its_own_words() -> None:
    app = Celery("shop", set_as_current=False)
    _schedule_last(app)
    stored = {name: json.loads(text) for name, text in start_beat(app, StoringScheduler).stored.items()}
    assert set(stored) == {"nightly", beat.REARM, beat.PRUNE}
    assert stored[beat.PRUNE] == {
        "task": beat.PRUNE,
        "queue": "outbox.relay.shop",
        "exchange": "",
        "routing_key": "outbox.relay.shop",
        "expire_seconds": 3600,
    }


def test_the_entries_survive_a_restart_of_a_beat_that_keeps_its_schedule_in_a_file(tmp_path: Path) -> None:
    for _ in range(2):
        app = Celery("shop", set_as_current=False)
        _schedule_last(app)
        scheduler = start_beat(app, PersistentScheduler, schedule_filename=str(tmp_path / "schedule"))
        assert set(scheduler.schedule) >= {"nightly", beat.REARM, beat.PRUNE}
        scheduler.close()


def test_a_dormant_outbox_adds_nothing() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(CONF, outbox_enabled=False, beat_schedule=THEIRS)
    Outbox(app)
    assert set(start_beat(app).schedule) == {"nightly"}


def test_another_apps_beat_is_left_alone() -> None:
    _schedule_last(Celery("shop", set_as_current=False))
    other = Celery("other", set_as_current=False)
    assert beat.REARM not in start_beat(other).schedule


def test_wrong_settings_keep_beat_from_starting() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(CONF, outbox_rearm_interval=0)
    Outbox(app)
    with pytest.raises(SystemExit, match="outbox_rearm_interval"):
        start_beat(app)


def test_a_real_beat_sends_its_entries_to_the_relays_queue(tmp_path: Path, broker_url: str) -> None:
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\n"
        "from outbox_relay import Outbox\n"
        f"app = Celery('shop', broker={broker_url!r})\n"
        "app.conf.update(outbox_enabled=True, outbox_database_url='sqlite:///unused.db', outbox_rearm_interval=0.2)\n"
        "Outbox(app)\n"
        "app.conf.beat_schedule = {'theirs': {'task': 'shop.theirs', 'schedule': 0.2}}\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "shop", "beat", "--schedule", "schedule"]
    with (tmp_path / "beat.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": ""})
    try:
        with Connection(broker_url) as connection, connection.channel() as channel:
            relays = own_queue("outbox.relay.shop")(channel)
            theirs = Queue("celery", Exchange("celery"), "celery")(channel)
            for queue, task in ((relays, beat.REARM), (theirs, "shop.theirs")):
                queue.declare()
                message = eventually(lambda queue=queue: queue.get(no_ack=True), within=20)
                assert message.headers["task"] == task
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
