"""The documentation says what the code does: generated parts are current, tables are whole, links lead somewhere."""

from __future__ import annotations

import inspect
import re
import shlex
from typing import TYPE_CHECKING

import click
import pytest

from outbox_relay import testing
from outbox_relay.cli import outbox
from outbox_relay.relay import health
from tests.support.commands import parse
from tests.support.documents import DOCS, GENERATED, ROOT, defaults, rendered

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")])


def rows(page: Path, first: str) -> dict[str, list[str]]:
    """The rows of the tables of a page whose first cell is code that starts with ``first``."""
    found: dict[str, list[str]] = {}
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith(f"| `{first}"):
            found[cells[0].strip("`")] = cells[1:]
    return found


def metrics() -> set[str]:
    """The names of all metrics, as Prometheus shows them."""
    gauges = re.findall(r'"(outbox_[a-z_]+)"', inspect.getsource(health))
    return {*gauges, *(f"outbox_{name}_total" for name in health.COUNTED.values())}


@pytest.mark.parametrize("file", sorted(GENERATED))
def test_generated_parts_are_current(file: str) -> None:
    assert (DOCS / file).read_text() == rendered(file), "run `make docs`"


def test_the_settings_table_has_every_key_with_its_default() -> None:
    table = rows(DOCS / "settings.md", "outbox_")
    assert {key: cells[0].strip("`") for key, cells in table.items()} == defaults()


def test_the_metrics_table_has_every_metric() -> None:
    assert {name.partition("{")[0] for name in rows(DOCS / "metrics.md", "outbox_")} == metrics()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_celery_program_exist(page: Path) -> None:
    for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "celery":
                parse(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_verbs_of_the_command_line_exist(page: Path) -> None:
    """Inline code that starts with a verb and goes on with an option: ``relay --take-over``."""
    for code in re.findall(r"`([^`\n]+)`", page.read_text()):
        words = shlex.split(code) if code.count("'") % 2 == 0 else []
        if len(words) > 1 and words[0] in outbox.list_commands(click.Context(outbox)):
            parse(["-A", "shop", "outbox", *words])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    tables = {"outbox_row", "outbox_namespace", "outbox_hold", "outbox_worker", "outbox_once", "outbox_meta"}
    names = set(re.findall(r"\boutbox_[a-z_]+\b", page.read_text()))
    others = {"outbox_relay", "outbox_event", "outbox_fields", "outbox_aside", "outbox_id", *testing.__all__}
    known = set(defaults()) | tables | metrics() | others
    assert not names - known
