"""The generated parts of docs/: they stand between two markers and are written from the code.

``python -m tests.support.documents`` writes them anew; tests/test_docs.py fails while they are not current.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from datetime import timedelta
from pathlib import Path

from outbox_relay.core.lifecycle import TERMINAL, TRANSITIONS, Status
from outbox_relay.events import CATALOGUE
from outbox_relay.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def states() -> str:
    """The state diagram (Mermaid): one arrow a pair of states, with the events that take it."""
    arrows: dict[tuple[Status, Status], list[str]] = {}
    for (status, event), target in TRANSITIONS.items():
        arrows.setdefault((status, target), []).append(event.value)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> pending: stage"]
    for (status, target), events in arrows.items():
        lines.append(f"    {status.value} --> {target.value}: {', '.join(events)}")
    lines.extend(f"    {status.value} --> [*]: prune" for status in Status if status in TERMINAL)
    return "\n".join([*lines, "```"])


def events() -> str:
    lines = ["| event | level | line |", "| --- | --- | --- |"]
    for name, description in CATALOGUE.items():
        level = logging.getLevelName(description.level).lower()
        lines.append(f"| `{name}` | {level} | {description.text} |")
    return "\n".join(lines)


def defaults() -> dict[str, str]:
    """Every settings key with its default, as the settings table shows it."""
    shown = {}
    for field in dataclasses.fields(Settings):
        value = field.default
        if value is dataclasses.MISSING:
            text = "needed"
        elif isinstance(value, timedelta):
            seconds = value.total_seconds()
            text = str(int(seconds)) if seconds.is_integer() else str(seconds)
        elif value is None or value == ():
            text = "none"
        elif isinstance(value, bool):
            text = str(value)
        else:
            text = str(value)
        shown[PREFIX + field.name] = text
    return shown


GENERATED = {"concepts.md": {"states": states}, "events.md": {"events": events}}


def write(text: str, name: str, content: str) -> str:
    """Put ``content`` between the markers of ``name``.

    Raises:
        ValueError: the markers are not there.
    """
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    new, count = pattern.subn(lambda _: f"{begin}\n{content}\n{end}", text)
    if count != 1:
        raise ValueError(f"{begin} … {end} should be there once")
    return new


def part(text: str, name: str) -> str:
    """What stands between the markers of ``name``."""
    return text.partition(f"<!-- generated: {name} -->\n")[2].partition(f"\n<!-- end: {name} -->")[0]


def rendered(file: str) -> str:
    text = (DOCS / file).read_text()
    for name, make in GENERATED[file].items():
        text = write(text, name, make())
    return text


if __name__ == "__main__":
    for file in GENERATED:
        (DOCS / file).write_text(rendered(file))
