"""Starts celery processes quickly: the imports, most of a start's time, are done once, then each process is a fork.

It reads one JSON document a line and answers with one: ``{"start": …}`` with the process id, ``{"poll": pid}`` with the
exit code, or null while the process runs. A child is a process of its own in every other way, to the very end of its
interpreter.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any

PRELOADED = (
    *("celery.__main__", "celery.apps.worker", "celery.apps.beat", "celery.worker.consumer", "celery.worker.worker"),
    *("celery.concurrency.prefork", "celery.concurrency.solo", "celery.bin.celery", "celery.bin.worker"),
    *("celery.app.trace", "celery.events.state", "celery.backends.base", "billiard.pool"),
    *("kombu.transport.pyamqp", "kombu.transport.redis", "redis", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"),
    *("outbox_relay.outbox", "outbox_relay.relay.service", "outbox_relay.cli", "outbox_relay.cli.relay"),
)


def main() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.disable()  # what is not written to stays shared with the children
    ended: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                gc.enable()
                become(request["start"])
                return
            answer: int | None = pid
        else:
            answer = poll(request["poll"], ended)
        print(json.dumps(answer), flush=True)


def poll(pid: int, ended: dict[int, int]) -> int | None:
    if pid not in ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended.get(pid)


def become(process: dict[str, Any]) -> None:
    """Be the celery program with these arguments."""
    os.setsid()
    os.chdir(process["cwd"])
    os.environ.clear()
    os.environ.update(process["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(process["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.argv = ["celery", *process["arguments"]]
    sys.path[0] = process["cwd"]
    importlib.import_module("celery.__main__").main()


if __name__ == "__main__":
    main()
