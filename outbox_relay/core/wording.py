"""Instants and spans as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SHOWN = 3


def instant(value: datetime) -> str:
    """Return an instant in UTC, to the millisecond."""
    return value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def age(value: datetime, now: datetime) -> str:
    """Return how long ago (or in how long) ``value`` is, seen from ``now``."""
    delta = now - value
    return f"{span(delta)} ago" if delta >= timedelta(0) else f"in {span(-delta)}"


def span(value: timedelta) -> str:
    """Return a span in the two largest units that it has."""
    seconds = value.total_seconds()
    if abs(seconds) < 60:
        return f"{seconds:.1f}s" if abs(seconds) < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def brief(text: str, most: int = 200) -> str:
    """Return the first line of a text, and not too much of it."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "…"


def names(given: Iterable[str]) -> str:
    """Return a list of names, each once and in order, and not too many of them."""
    every = sorted(set(given))
    return ", ".join(every[:SHOWN]) + (f" and {len(every) - SHOWN} more" if len(every) > SHOWN else "")


def counted(number: int, thing: str) -> str:
    """Return a number of things."""
    return f"{number} {thing}" if number == 1 else f"{number:,} {thing}s"
