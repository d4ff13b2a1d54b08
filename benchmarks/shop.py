"""The app that is measured: one task that does nothing but note that it ran. The environment says where it runs."""

from __future__ import annotations

import os
import time
from functools import lru_cache

from celery import Celery

from outbox_relay import Outbox

PAD = "x" * 200
QUEUE = "celery"

app = Celery("bench", broker=os.environ.get("BENCH_BROKER", "memory://"))
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
if os.environ.get("BENCH_CONFIRM"):
    app.conf.broker_transport_options = {"confirm_publish": True}
if os.environ.get("BENCH_LATE"):
    app.conf.task_acks_late = True
if database := os.environ.get("BENCH_DATABASE"):
    app.conf.update(outbox_enabled=True, outbox_database_url=database)
    outbox = Outbox(app)


@lru_cache(maxsize=1)
def _notes() -> int:
    return os.open(os.environ["BENCH_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


@app.task(name="bench.noop")
def noop(number: int, pad: str) -> None:
    """Note the number and the moment: a line is written at once, so that lines of several processes do not mix."""
    os.write(_notes(), b"%d %.6f\n" % (number, time.time()))
