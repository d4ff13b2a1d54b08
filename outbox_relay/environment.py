"""Settings from environment variables: ``OUTBOX_BATCH_SIZE`` for ``outbox_batch_size``, and so on for each of them."""

from __future__ import annotations

import difflib
import re
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_type_hints

from outbox_relay.errors import SettingsError
from outbox_relay.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "OUTBOX_"
# Not meant for us: what Kubernetes puts into every container for a Service that happens to be called "outbox", and the
# servers that are lent to this project's own tests.
_FOREIGN = re.compile(r"OUTBOX_((.+_)?(SERVICE_(HOST|PORT)(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)|TEST_.+)")
_TRUE, _FALSE, _NONE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}, {"none", "null"}


def _flag(text: str) -> bool:
    word = text.lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("write true or false")


def _whole(text: str) -> int:
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    raise ValueError("write a whole number")


def _number(text: str) -> float:
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text):
        return float(text)
    raise ValueError("write a number, such as 30 or 2.5")


def _list(text: str) -> list[str]:
    names = [one.strip() for one in text.split(",")]
    if all(names):
        return names
    raise ValueError("write names with commas between them")


_READERS: Mapping[Any, Callable[[str], Any]] = {
    bool: _flag,
    int: _whole,
    int | None: _whole,
    float: _number,
    timedelta: _number,
    tuple[str, ...]: _list,
    str: str,
    str | None: str,
}


def _settings() -> dict[str, tuple[Callable[[str], Any], bool]]:
    """Every variable's reader, and whether ``none`` is a value of it."""
    hints = get_type_hints(Settings)
    known = {
        one.name: (_READERS[hints[one.name]], type(None) in getattr(hints[one.name], "__args__", ()))
        for one in fields(Settings)
    }
    return {**known, "broker_url": (str, False), "imports": (_list, False)}


def configuration(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the Celery configuration that ``OUTBOX_…`` variables ask for.

    Raises:
        SettingsError: a variable is unknown, empty, or cannot be read; the message names it.
    """
    known = _settings()
    conf: dict[str, Any] = {}
    for variable in sorted(environ):
        name = variable.removeprefix(VARIABLE).lower()
        if not variable.startswith(VARIABLE) or (name not in known and _FOREIGN.fullmatch(variable)):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {VARIABLE}{near[0].upper()}?" if near else "see the settings in the documentation"
            raise SettingsError(f"the environment variable {variable} is not a setting of outbox_relay: {hint}")
        read, optional = known[name]
        text = environ[variable].strip()
        if not text:
            raise SettingsError(f"the environment variable {variable} is empty: give it a value, or unset it")
        try:
            value = None if optional and text.lower() in _NONE else read(text)
        except ValueError as error:
            raise SettingsError(f"the environment variable {variable} = {text!r} is refused: {error}") from None
        conf[name if name in ("broker_url", "imports") else f"outbox_{name}"] = value
    return conf
