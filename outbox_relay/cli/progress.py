"""A bar that shows how many rows are in each state: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import Progress, ProgressColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from outbox_relay.cli.output import STYLES, console

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from rich.progress import Task

WIDTH = 40
LINE_EVERY = 5.0
FROM_THE_LEFT = ("done", "failed", "claimed", "pending")
IN_WORDS = ("pending", "claimed", "done", "failed")


class _Bar(ProgressColumn):
    def render(self, task: Task) -> Text:
        return bar(task.fields["counts"], int(task.total or 1))


class _Counts(ProgressColumn):
    def render(self, task: Task) -> Text:
        return legend(task.fields["counts"])


class States:
    """Show counts by state, of ``total`` rows in all; use it as a context manager."""

    def __init__(self, total: int) -> None:
        out = console()
        self._live = out.is_terminal
        self._next_line = time.monotonic()
        columns = (_Bar(Column(no_wrap=True)), _Counts(Column(no_wrap=True)), TimeElapsedColumn())
        self._progress = Progress(*columns, console=out, disable=not self._live)
        self._task = self._progress.add_task("", total=total, counts={})
        self._total = total
        self._out = out

    def show(self, counts: Mapping[str, int]) -> None:
        """Show the counts of now."""
        settled = counts.get("done", 0) + counts.get("failed", 0)
        self._progress.update(self._task, completed=settled, counts=counts)
        if not self._live and (time.monotonic() >= self._next_line or settled == self._total):
            self._next_line = time.monotonic() + LINE_EVERY
            self._out.print(legend(counts))

    def __enter__(self) -> States:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()


def bar(counts: Mapping[str, int], total: int) -> Text:
    """Return a bar in which every state has its share."""
    made = Text()
    drawn, seen = 0, 0
    for state in FROM_THE_LEFT:
        seen += counts.get(state, 0)
        upto = min(round(WIDTH * seen / total), WIDTH)
        made.append("━" * (upto - drawn), STYLES[state])
        drawn = max(drawn, upto)
    return made.append("━" * (WIDTH - drawn), "bright_black")


def legend(counts: Mapping[str, int]) -> Text:
    """Return the counts in words, each in the colour that it has in the bar."""
    made = Text()
    for state in IN_WORDS:
        made.append(f"{state} {counts.get(state, 0):>4}  ", STYLES[state])
    return made
