"""Private server processes: free ports, a folder each, and nothing left behind, however the test session ends."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_PROCESSES = 20
SHARE = 100  # ports in a row that belong to one test process

# Waits for the end of its standard input, which comes with the end of the test session, even by SIGKILL. Then it ends
# what is left of the servers: a process counts only where it works in this session's folder.
_KEEPER = """
read -r _
for pid in $(cat "$1"/*/*.pid 2>/dev/null); do
    case $(readlink "/proc/$pid/cwd") in "$1"/*) kill -9 "$pid" ;; esac
done
rm -rf "$1"
"""


class ServerMissingError(Exception):
    """The program of a server is not on this machine; the message says what to install."""


class NotOurServerError(Exception):
    """A test wants to stop a server that the test session did not start."""


class Workshop:
    """The folder that all servers of one test session live in."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(base) > 40:  # a UNIX socket's path has 107 characters
            base = "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix="outbox-", dir=base)).resolve()
        self.folder.chmod(0o755)
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "keeper", str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(timeout=30)


class Process:
    """One server program, run in the foreground as a child of the test session."""

    def __init__(self, folder: Path, name: str, *, user: str | None = None) -> None:
        self.folder = folder
        self.log = folder / f"{name}.log"
        self.user = user
        self._pid_file = folder / f"{name}.pid"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    def start(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                **as_user(self.user),
            )
        self._pid_file.write_text(f"{self._child.pid}\n")

    def send(self, signum: int) -> None:
        assert self._child is not None, "not started"
        self._child.send_signal(signum)

    def end(self, signum: int = signal.SIGKILL, within: float = 60) -> None:
        """Send a signal and wait for the end; a process that does not go is killed, and that is an error."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.send_signal(signum)
        try:
            self._child.wait(timeout=within)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(timeout=within)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)  # its helpers, such as a port mapper's children
            self._child = None
            self._pid_file.unlink(missing_ok=True)

    def tail(self, size: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def ready(self, port: int, within: float) -> None:
        """Wait until the server takes connections on its port.

        Raises:
            AssertionError: it did not, or it ended; with the end of its log.
        """

        def listens() -> bool:
            if not self.running:
                raise RuntimeError(f"the server ended at its start: {self.tail()}")
            return answers(port)

        try:
            eventually(listens, within)
        except AssertionError:
            raise AssertionError(f"{self.log.stem} did not start within {within:g} s: {self.tail()}") from None


def as_user(user: str | None) -> dict[str, object]:
    """The arguments that make ``subprocess`` run as ``user``, where this process is root and may do so."""
    if user is None or os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def unprivileged() -> str | None:
    """A user for programs that refuse to run as root; None where this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            pwd.getpwnam(name)
            return name
    raise ServerMissingError("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'")


def find_program(name: str, *folders: str) -> str | None:
    """Look for a program in glob patterns of folders (the newest version first), then on the path."""
    for pattern in folders:
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), key=_version, reverse=True):
            if os.access(folder / name, os.X_OK):
                return str(folder / name)
    return shutil.which(name)


def _version(path: Path) -> list[int]:
    return [int(part) for part in "".join(c if c.isdigit() else " " for c in str(path)).split()]


def free_port() -> int:
    """A port that nobody listens on, below those that outgoing connections take.

    A client that dials a port of the ephemeral range again and again while its server is down may meet itself. Each of
    several test processes has ports of its own: none takes one that another has found free, or that a server of
    another, which is down for the moment, will listen on again.
    """
    for _ in range(200):
        port = random.SystemRandom().randrange(20_000 + SHARE * _test_process(), 32_000, SHARE * MOST_PROCESSES)
        port += random.SystemRandom().randrange(SHARE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port from 20000 to 32000")


def _test_process() -> int:
    """The number of this process among those that share the tests; see OUTBOX_TEST_PROCESSES in bin/test."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MOST_PROCESSES


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
