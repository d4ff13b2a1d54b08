"""Medians, ratios and tables."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.measures import Sample


def table(unit: str, samples: Mapping[str, Sequence[Sample]], *, base: str) -> list[str]:
    """A Markdown table: one line a way, with its median, its range, and its ratio to ``base`` (round by round)."""
    extra = list(dict.fromkeys(name for many in samples.values() for one in many for name in one.more))
    heads = ["way", unit, "least to most", f"ratio to {base}", *extra, "lost", "twice"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, many in samples.items():
        values = [one.value for one in many]
        ratio = statistics.median(one.value / other.value for one, other in zip(many, samples[base], strict=True))
        cells = [
            name,
            _number(statistics.median(values)),
            f"{_number(min(values))} to {_number(max(values))}",
            f"{ratio:.2f}",
            *(_number(statistics.median(one.more.get(key, 0.0) for one in many)) for key in extra),
            str(sum(one.lost for one in many)),
            str(sum(one.twice for one in many)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


_NOTE = re.compile(r" \([^()]*rounds[^()]*\)$")


def merged(old: str, lines: Sequence[str], note: str) -> str:
    """Put tables of a run that measured only a part in the place of the old ones; ``note`` says what run it was."""
    blocks = _blocks(old.splitlines())
    for title, block in _blocks(lines).items():
        if title:
            blocks[title] = [f"### {title} ({note})", *block[1:]]
    return "\n".join(line for block in blocks.values() for line in block).strip()


def _blocks(lines: Sequence[str]) -> dict[str, list[str]]:
    """Lines by the title that they stand under; what stands before the first has none."""
    blocks: dict[str, list[str]] = {"": []}
    title = ""
    for line in lines:
        if line.startswith("### "):
            title = _NOTE.sub("", line.removeprefix("### "))
            blocks[title] = []
        blocks[title].append(line)
    for block in blocks.values():
        while block and not block[-1]:
            block.pop()
        block.append("")
    return blocks
