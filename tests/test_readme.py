"""The README's first screen: its code runs as it stands, and its commands exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from outbox_relay import Outbox
from tests.support.commands import parse

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_code_stages_a_row_that_is_committed(tmp_path: Path, postgres_url: str, rabbitmq_url: str) -> None:
    """As it stands, but for the addresses; the tables come from the README's own command."""
    code, *_ = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    for written, real in (
        ("amqp://guest:guest@localhost//", rabbitmq_url),
        ("postgresql+psycopg://localhost/shop", postgres_url),
    ):
        assert written in code
        code = code.replace(written, real)
    app, staging = code.split("with Session", 1)
    (tmp_path / "shop.py").write_text(app)
    (tmp_path / "stage.py").write_text(f"from shop import *\n\nwith Session{staging}\nprint(staged.task_id)\n")
    migrated = _run(tmp_path, "-m", "celery", "-A", "shop", "outbox", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    staged = _run(tmp_path, "stage.py")
    assert staged.returncode == 0, staged.stderr
    shown = _run(tmp_path, "-m", "celery", "-A", "shop", "outbox", "show", "--json", staged.stdout.strip())
    assert shown.returncode == 0, shown.stderr
    assert '"pending"' in shown.stdout


def test_the_code_for_each_framework_is_whole() -> None:
    """The shops under examples/ run the same calls, and tests run them."""
    _, *frameworks = blocks("python")
    assert len(frameworks) == 4
    for code in frameworks:
        ast.parse("async def main():\n" + textwrap.indent(code, "    "))
        for method in re.findall(r"outbox\.(\w+)\(", code):
            assert hasattr(Outbox, method)


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOX_", "CELERY_"))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_every_command_is_one_that_exists() -> None:
    for line in "".join(blocks("sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "celery":
            parse(words[1:])
        elif words[0] == "pip":
            assert words == ["pip", "install", "outbox-relay[postgresql]"]
        else:
            assert os.access(ROOT / words[0], os.X_OK), line


def test_the_first_screen_says_that_early_acknowledgement_changes_its_meaning() -> None:
    first_screen = README.splitlines()[:40]
    text = " ".join(first_screen)
    assert "at most once" in text
    assert "at least once" in text
