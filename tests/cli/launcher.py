"""Starts celery processes quickly: the imports, most of a command's time, are done once, then each command is a fork.

A child is a process of its own in every other way: its folder, environment, arguments, streams and exit code.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import psycopg  # noqa: F401
import redis  # noqa: F401
from celery.__main__ import main
from click import Context

import outbox_relay.cli

for name in outbox_relay.cli.outbox.list_commands(Context(outbox_relay.cli.outbox)):
    outbox_relay.cli.outbox.get_command(Context(outbox_relay.cli.outbox), name)


def run(request: dict[str, object]) -> None:
    """Become the command."""
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    for stream, number in (("in", 0), ("out", 1), ("err", 2)):
        path = str(request[stream])
        os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    sys.argv = ["celery", *request["arguments"]]  # type: ignore[misc]
    sys.path[0] = os.getcwd()
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if isinstance(code, str) else int(code or 0))  # tearing everything down takes longer than the command


gc.collect()
gc.freeze()
gc.disable()  # what is not written to stays shared with the children

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        gc.enable()
        run(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
