"""Waiting for a condition, with a deadline instead of a sleep."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def eventually(condition: Callable[[], T], within: float = 10.0, *, every: float = 0.02, what: str = "") -> T:
    """Call ``condition`` until it returns something true, and return that.

    An ``AssertionError`` in it counts as "not yet"; any other error ends the wait.

    Raises:
        AssertionError: it did not come true ``within`` that many seconds; the message has its last answer.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            value = condition()
        except AssertionError as error:
            last: object = error
        else:
            if value:
                return value
            last = value
        if time.monotonic() >= deadline:
            name = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"{name} did not come true within {within:g} s; its last answer: {last!r}")
        time.sleep(every)


def never(condition: Callable[[], object], during: float, *, every: float = 0.02, what: str = "") -> None:
    """Watch ``condition`` for ``during`` seconds and fail as soon as it is true."""
    deadline = time.monotonic() + during
    while time.monotonic() < deadline:
        if value := condition():
            name = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"{name} came true: {value!r}")
        time.sleep(every)
