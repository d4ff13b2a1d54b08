"""``demo``: the whole way of 1,000 tasks, on this machine, with real processes and nothing installed beside."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from celery import Celery

from outbox_relay.cli.crew import Crew
from outbox_relay.cli.demo_report import read_report, show_report
from outbox_relay.cli.demo_stage import stage_all
from outbox_relay.cli.demo_tasks import engine_of, metadata, total
from outbox_relay.cli.output import note, say
from outbox_relay.cli.progress import States
from outbox_relay.cli.session import Refused, verb
from outbox_relay.environment import configuration
from outbox_relay.outbox import Outbox
from outbox_relay.store.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

LIMIT = 38.0  # seconds for the tasks to settle, of the 45 that the demo may take in all
LOOK_EVERY = 0.2
CONFIG = """\
task_acks_late = True
worker_prefetch_multiplier = 8
worker_hijack_root_logger = True
"""


@click.command(short_help="Run 1,000 tasks the whole way, on this machine alone.")
@click.option("--keep", is_flag=True, help="Keep the folder with the database and the logs of the processes.")
@verb
def demo(keep: bool) -> None:
    """Run 1,000 tasks from a transaction to their outcome, with a real relay, worker and beat.

    A SQLite file and the embedded broker in a temporary folder are all that it needs. Some transactions are rolled
    back, some tasks fail for good, some are retried, one takes its process down. It ends by itself within 45 seconds,
    and with 1 where a row is missing or a rolled-back task ran.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="outbox-demo-"))
    complete = kept = False
    try:
        complete = run(folder)
        kept = keep or not complete
    except Exception:
        kept = True
        raise
    finally:
        if kept:
            note(f"the database and the logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    click.get_current_context().exit(0 if complete else 1)


def run(folder: Path) -> bool:
    """Run the demo in ``folder``, print its table, and return whether every figure is as it has to be."""
    began = time.monotonic()
    (folder / "celeryconfig.py").write_text(CONFIG)
    environ = environment(folder, os.environ)
    with Crew(folder, environ) as crew:
        outbox = prepare(folder, environ)
        crew.start(
            "worker", ["worker", "--concurrency", "2", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
        )
        crew.start("relay", ["outbox", "relay"])
        crew.start("beat", ["beat", "--loglevel", "INFO", "--schedule", str(folder / "beat")])
        say(f"relay, worker and beat run in {folder}; 1,000 tasks are staged meanwhile")
        try:
            watch(outbox, crew, until=began + LIMIT)
        finally:
            outbox.close()
    report = read_report(outbox)
    outbox.close()
    show_report(report, took=time.monotonic() - began)
    return report.complete


def environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the demo's processes: nothing of an outbox or Celery that is configured here."""
    environ = {name: value for name, value in inherited.items() if not name.startswith(("OUTBOX_", "CELERY_"))}
    for name in ("APP", "BROKER_URL", "RESULT_BACKEND", "CONFIG_MODULE", "LOADER"):
        environ.pop(name, None)
    package = str(Path(__file__).resolve().parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), package, environ.get("PYTHONPATH")]))
    environ.update(
        OUTBOX_ENABLED="true",
        OUTBOX_DATABASE_URL=f"sqlite:///{folder / 'shop.db'}",
        OUTBOX_BROKER_URL=f"embedded:///{folder / 'broker'}",
        OUTBOX_IMPORTS="outbox_relay.cli.demo_tasks",
        OUTBOX_NAME="demo",
        OUTBOX_HEARTBEAT="2",
        OUTBOX_RUN_LEASE="10",
        OUTBOX_WORKER_TTL="8",
        OUTBOX_REARM_INTERVAL="5",
    )
    return environ


def prepare(folder: Path, environ: Mapping[str, str]) -> Outbox:
    """Return the outbox of an app like that of the processes, its tables and the shop's made."""
    app = Celery("outbox_relay")
    app.conf.update(configuration(environ))
    outbox = Outbox(app)
    migrate(outbox.store.engine, outbox.settings.table_prefix, outbox.settings.schema)
    metadata.create_all(engine_of(outbox.settings.database_url))
    app.loader.import_default_modules()
    return outbox


def watch(outbox: Outbox, crew: Crew, *, until: float) -> None:
    """Stage the tasks and show how they fare, until all have their outcome or time is up.

    Raises:
        Refused: a process has ended on its own.
    """
    everything = total()
    staging = stage_all(outbox)
    staged = 0
    with States(everything) as states:
        while time.monotonic() < until:
            counts = outbox.store.counts()
            states.show(counts)
            if staged == everything == counts["done"] + counts["failed"]:
                return
            if (name := crew.casualty()) is not None:
                raise Refused(f"the {name} ended on its own; the end of its log:\n{tail(crew.log(name))}")
            if staged < everything:
                staged = next(staging)
            else:
                time.sleep(LOOK_EVERY)


def tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
