"""What comes from elsewhere cannot act on a terminal, and what goes to a program can be read by it."""

from __future__ import annotations

import io
import json
from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest
from rich.console import Console

from outbox_relay.cli import output
from outbox_relay.core.lifecycle import Status

HOSTILE = "\x1b[31mred\x1b[0m [red]markup[/red] :smile: \x07 \u202eback \x9b2J \ud800 \r gone"


@pytest.mark.parametrize("lines", [True, False])
def test_no_character_that_a_terminal_acts_on_is_printed(lines: bool) -> None:
    shown = output.visible(HOSTILE, lines=lines)
    assert shown.isprintable()
    assert "[red]markup[/red] :smile:" in shown
    assert r"\x1b[31m" in shown


def test_line_ends_stay_only_where_lines_are_wanted() -> None:
    assert output.visible("a\nb\tc", lines=True) == "a\nb\\tc"
    assert output.visible("a\nb") == "a\\nb"


def test_markup_in_a_table_is_text() -> None:
    stream = io.StringIO()
    made = output.table({"task": lambda row: row}, [HOSTILE, "[link=http://x]y[/link]"])
    Console(file=stream, force_terminal=True, width=200, color_system="truecolor", markup=True).print(made)
    shown = stream.getvalue()
    assert "[red]markup[/red]" in shown
    assert "[link=http://x]y[/link]" in shown
    assert "\x1b[31m" not in shown


def test_json_has_instants_in_utc_and_spans_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    there = timezone(timedelta(hours=9))
    output.print_json(
        {
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=there),
            "span": timedelta(minutes=1),
            "id": UUID(int=1),
            "status": Status.DONE,
            "raw": b"\xff",
            "none": None,
            "text": HOSTILE,
        }
    )
    captured = capsys.readouterr().out
    assert captured.isascii()
    document = json.loads(captured)
    assert document["at"] == "2026-01-01T18:04:05+00:00"
    assert document["span"] == 60
    assert document["id"] == "00000000-0000-0000-0000-000000000001"
    assert document["status"] == "done"
    assert document["raw"] == "\\xff"
    assert document["none"] is None
    assert document["text"] == HOSTILE


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2s"), (12, "12s"), (61, "1m 1s"), (7265, "2h 1m"), (3 * 86400 + 3600, "3d 1h")],
)
def test_a_span_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert output.span(timedelta(seconds=seconds)) == text
