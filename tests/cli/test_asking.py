"""Verbs that destroy ask on a terminal, and do nothing unless they are told yes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import clean_environment
from tests.cli.test_verbs import fail

if TYPE_CHECKING:
    from tests.cli.conftest import Shop


def on_a_terminal(shop: Shop, answer: str, *arguments: str) -> tuple[int, str]:
    """Run a verb on a terminal of its own, type ``answer``; return its exit code and all that the terminal showed."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "shop", "outbox", *arguments],
            cwd=shop.folder,
            env={**clean_environment(), "TERM": "xterm", "COLUMNS": "200"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
    finally:
        os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the terminal closes with the process
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=30), shown.decode()


@pytest.mark.parametrize(("answer", "code", "status"), [("n", 1, "failed"), ("y", 0, "pending")])
def test_redrive_asks_and_shows_what_it_would_touch(light_shop: Shop, answer: str, code: int, status: str) -> None:
    light_shop.ok("migrate")
    (staged,) = light_shop.stage("shop.\x1b[5mcharge[red]")
    fail(light_shop, staged.row_id)
    ended, shown = on_a_terminal(light_shop, answer, "failed", "redrive", "--all")
    assert ended == code, shown
    assert "Redrive 1 row? [y/N]" in shown
    assert r"shop.\x1b[5mcharge[red]" in shown
    assert "\x1b[5m" not in shown
    assert light_shop.ok("show", str(staged.row_id), "--json").json["status"] == status


def test_tables_on_a_terminal_are_coloured_and_fit_it(light_shop: Shop) -> None:
    light_shop.ok("migrate")
    light_shop.stage("shop.charge")
    code, shown = on_a_terminal(light_shop, "", "ls")
    assert code == 0
    assert "\x1b[33mpending" in shown
