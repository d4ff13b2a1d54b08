"""The app of a small shop, as the processes of a flow test load it: ``celery -A tests.flow.shop …``.

Its configuration comes from the environment. What its tasks do is seen in a file, one line a run, which no broker,
database or kill can take back. ``SHOP_DIES_AT`` names an event of the outbox at which the process kills itself, or,
with ``:STOP`` after it, stops itself once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from celery import Celery, signals

from outbox_relay.outbox import Outbox

if TYPE_CHECKING:
    from outbox_relay.events import Event

FOLDER = "SHOP_FOLDER"
CONF = "SHOP_CONF"
DIES_AT = "SHOP_DIES_AT"
MUTE = "SHOP_MUTE"


def make(conf: dict[str, Any], folder: Path, *, mute: bool = False) -> Celery:
    """Return the shop's app; its tasks write their runs into ``folder``. A ``mute`` one has no outbox installed."""
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    if not mute:
        Outbox(app)

    def note(task_id: str, what: object) -> int:
        """Write a run down, and return which one of this task id it is, from one."""
        line = f"{task_id} {what}\n".encode()
        runs = os.open(folder / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(runs, line)
        finally:
            os.close(runs)
        return (folder / "runs").read_text().count(f"{task_id} ")

    @app.task(name="shop.charge", bind=True, shared=False)
    def charge(self: Any, order: object = None) -> None:
        note(self.request.id, order)

    @app.task(name="shop.retry", bind=True, shared=False, max_retries=5)
    def retry(self: Any, times: int, countdown: float = 0.1) -> None:
        note(self.request.id, self.request.retries)
        if self.request.retries < times:
            raise self.retry(countdown=countdown)

    @app.task(name="shop.fail", bind=True, shared=False)
    def fail(self: Any, times: int = 1) -> None:
        """Fail the first ``times`` runs."""
        if note(self.request.id, "fail") <= times:
            raise ValueError("the card was refused")

    @app.task(name="shop.die", bind=True, shared=False)
    def die(self: Any, times: int = 1) -> None:
        """Take the pool child down in the first ``times`` runs."""
        if note(self.request.id, "die") <= times:
            os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="shop.kill", bind=True, shared=False)
    def kill(self: Any, times: int = 1) -> None:
        """Take the whole worker down in the first ``times`` runs, as a power cut would."""
        if note(self.request.id, "kill") <= times:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)

    @app.task(name="shop.kill_known", bind=True, shared=False)
    def kill_known(self: Any) -> None:
        """Take the whole worker down, every time, when a beacon has told that the task runs."""
        note(self.request.id, "kill_known")
        time.sleep(2)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    @app.task(name="shop.kill_after", bind=True, shared=False)
    def kill_after(self: Any, times: int = 1) -> None:
        """Take the whole worker down right after the first ``times`` runs: done, and nobody is told."""
        if note(self.request.id, "kill_after") <= times:
            self.request.kill_after = True

    @app.task(name="shop.wait", bind=True, shared=False)
    def wait(self: Any, gate: str = "gate") -> None:
        """Run until the file ``gate`` is there."""
        note(self.request.id, "wait")
        while not (folder / gate).exists():
            time.sleep(0.02)

    @app.task(name="shop.pay", bind=True, shared=False)
    def pay(self: Any, url: str) -> None:
        """Take the whole worker down right after the first run has committed its effects in a database of its own."""
        run = note(self.request.id, "pay")
        engine = sa.create_engine(url)
        Outbox.configure_sqlite(engine)
        with engine.begin() as connection:
            app.outbox.once(connection)
            connection.exec_driver_sql("INSERT INTO payment VALUES (1)")
        engine.dispose()
        if run == 1:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)

    if importlib.util.find_spec("celery_batches") is not None:  # which does not follow every version of Celery
        batches = importlib.import_module("celery_batches")

        @app.task(
            name="shop.batch", base=batches.Batches, shared=False, acks_late=True, flush_every=3, flush_interval=1
        )
        def batch(requests: list[Any]) -> None:
            for request in requests:
                note(request.id, f"one of {len(requests)}")

    @signals.task_postrun.connect(weak=False)
    def _after(task: Any = None, **_: Any) -> None:
        if getattr(task.request, "kill_after", False):
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)

    return app


def _die_at(event: Event) -> None:
    name, _, how = os.environ[DIES_AT].partition(":")
    if event.name == name:
        os.environ[DIES_AT] = ""
        os.kill(os.getpid(), signal.Signals[f"SIG{how or 'KILL'}"])


if CONF in os.environ:
    app = make(json.loads(os.environ[CONF]), Path(os.environ[FOLDER]), mute=MUTE in os.environ)
    if os.environ.get(DIES_AT):
        app.outbox.events.subscribe(_die_at)
