"""An example, copied into a folder of its own, and the processes that a shop runs with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).parents[2]


class Stall:
    """One example. Use it as a context manager: its end is the end of its processes."""

    def __init__(self, name: str, folder: Path, **env: str) -> None:
        self.folder = folder / name
        shutil.copytree(ROOT / "examples" / name, self.folder, ignore=shutil.ignore_patterns("__pycache__", "*.db"))
        self.env = {**os.environ, "PYTHONPATH": f"{ROOT}:{self.folder}", "PYTHONWARNINGS": "default", **env}
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Stall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for log, process in self._running.items():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=30)
                raise AssertionError(f"{log.stem} did not end: {log.read_text()[-3000:]}") from error

    def run(self, *arguments: str) -> str:
        """Run Python on ``arguments`` to its end, which has to be a good one, and return what it printed."""
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str, *arguments: str, until: str) -> None:
        """Run Python on ``arguments`` beside the test, and wait until its log has ``until``."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self._running[log] = subprocess.Popen(
                [sys.executable, *arguments], cwd=self.folder, env=self.env, stdout=output, stderr=subprocess.STDOUT
            )

        def ready() -> bool:
            text = log.read_text(errors="replace")
            if self._running[log].poll() is not None:
                raise RuntimeError(f"{name} ended: {text[-3000:]}")
            return until in text

        eventually(ready, 60, what=f"{until!r} in the log of {name}")
