"""What the verbs print: tables for people, JSON for programs, and text that cannot do anything to a terminal."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outbox_relay.core.wording import age, instant, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

PIPE_WIDTH = 400  # a pipe has no width: nothing is cut off in it
ONE_LINE = {"error", "created", "due", "started", "last seen", "status"}
STYLES = {
    "pending": "yellow",
    "claimed": "cyan",
    "done": "green",
    "failed": "red",
    "cancelled": "magenta",
    "ok": "green",
    "warning": "yellow",
    "fault": "red",
}


def visible(value: str, *, lines: bool = False) -> str:
    """Return ``value`` with every character that a terminal would act on written out as an escape.

    Task names, errors and ids come from elsewhere: they may hold colours, cursor moves or text that runs backwards.
    Line ends are kept where ``lines`` is true.
    """
    return "".join(_escaped(char) if _acts(char) and not (lines and char == "\n") else char for char in value)


def _acts(char: str) -> bool:
    return unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


# -- for programs -------------------------------------------------------------------------------------------------


def print_json(document: Any) -> None:
    """Print one JSON document, with instants in UTC as ISO 8601 and spans in seconds."""
    click.echo(json.dumps(plain(document), indent=2, ensure_ascii=True))


def plain(value: Any) -> Any:
    """Return ``value`` as JSON knows it."""
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.astimezone(timezone.utc).isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case UUID():
            return str(value)
        case Mapping():
            return {str(plain(key)): plain(one) for key, one in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return plain(asdict(value))
        case Iterable():
            return [plain(one) for one in value]
        case _:
            raise TypeError(f"no JSON for a {type(value).__name__}")


# -- for people ---------------------------------------------------------------------------------------------------


def console(*, stderr: bool = False) -> Console:
    """Return a console that takes no markup, and cuts nothing off where its output is not a terminal."""
    context = click.get_current_context(silent=True)
    quiet = bool(getattr(getattr(context, "obj", None), "no_color", False))
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False, no_color=quiet or None, soft_wrap=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, markup=False, highlight=False, emoji=False, no_color=True, width=PIPE_WIDTH)
    return made


def print_table(renderable: RenderableType, *, stderr: bool = False) -> None:
    """Print a table; where its reader is not a terminal, without the blanks at the ends of its lines."""
    out = console(stderr=stderr)
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), err=stderr)


def say(text: str) -> None:
    """Print a line to standard output."""
    click.echo(visible(text, lines=True))


def note(text: str) -> None:
    """Print a line to standard error: what a person should know and a program need not."""
    click.echo(visible(text, lines=True), err=True)


def cell(value: Any, *, now: datetime | None = None) -> Text:
    """Return a value as a cell of a table."""
    match value:
        case None:
            return Text("-", style="dim")
        case Enum():
            return cell(value.value)
        case bool():
            return Text("yes" if value else "no")
        case datetime():
            return Text(age(value, now) if now else instant(value))
        case timedelta():
            return Text(span(value))
        case bytes():
            return Text(visible(value.decode("utf-8", "backslashreplace")))
        case _:
            text = visible(str(value))
            return Text(text, style=STYLES.get(text, ""))


def table(columns: Mapping[str, Callable[[Any], Any]], rows: Sequence[Any], *, now: datetime | None = None) -> Table:
    """Return a table of ``rows``, with a column for each name and the function that reads it from a row."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        made.add_column(name, overflow="ellipsis" if name in ONE_LINE else "fold", no_wrap=name in ONE_LINE)
    for row in rows:
        made.add_row(*(cell(read(row), now=now) for read in columns.values()))
    return made


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Return a table of names and values, one pair a line."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in pairs:
        text = Text(visible(value, lines=True)) if isinstance(value, str) and "\n" in value else cell(value)
        made.add_row(Text(name), text)
    return made


# -- before something is destroyed --------------------------------------------------------------------------------


def confirmed(what: str, *, yes: bool) -> bool:
    """Ask whether to do ``what``; without a terminal, only ``--yes`` is an answer.

    Raises:
        click.UsageError: nobody can be asked, and ``yes`` is false.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {visible(what)}: say --yes where nobody can be asked")
    return click.confirm(f"{visible(what[:1].upper() + what[1:])}?", err=True)
