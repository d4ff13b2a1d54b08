"""Processes that the demo starts, and that never outlive it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from celery.platforms import set_pdeathsig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

GRACE = 6.0  # seconds between being asked to end and being ended


class Crew:
    """A group of celery processes, each with a log file in ``folder``; use it as a context manager."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = dict(environ)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start ``celery -A outbox_relay …`` in a session of its own, so that a Ctrl-C reaches it through us alone."""
        command = [sys.executable, "-m", "celery", "-A", "outbox_relay", *arguments]
        with self.log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - no threads here yet
            )

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def casualty(self) -> str | None:
        """Return the name of a process that has ended on its own, if there is one."""
        return next((name for name, process in self._processes.items() if process.poll() is not None), None)

    def end(self) -> None:
        """Ask every process to end, and end those that do not."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + GRACE
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.01))
            _kill_group(process)
            process.wait()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()


def _end_with_parent() -> None:
    """Runs in the child before its program: the kernel ends it should we be killed and not get to it."""
    set_pdeathsig("SIGKILL")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a process's session, its pool children included."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
