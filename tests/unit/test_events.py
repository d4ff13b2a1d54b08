"""Events: the catalogue and the code that emits say the same, and a subscriber can do no harm."""

from __future__ import annotations

import ast
import fnmatch
import logging
import string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import outbox_relay
from outbox_relay.events import CATALOGUE, Event, Events, write_log

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = sorted(Path(outbox_relay.__file__).parent.rglob("*.py"))


def fields_of(name: str) -> set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(CATALOGUE[name].text) if field}


def names_in(node: ast.expr) -> list[str]:
    """The names that an expression may stand for; a part that is computed stands for every name that fits."""
    match node:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.IfExp(body=body, orelse=orelse):
            return names_in(body) + names_in(orelse)
        case ast.JoinedStr(values=parts):
            pattern = "".join(part.value if isinstance(part, ast.Constant) else "*" for part in parts)
            return fnmatch.filter(CATALOGUE, pattern) or [pattern]
    return []


def wrappers() -> dict[Path, set[str]]:
    """Methods named ``emit`` that pass a name on and add fields of their own: those fields, by folder."""
    added: dict[Path, set[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "emit":
                calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
                fields = {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}
                added.setdefault(path.parent, set()).update(fields)
    return added


def emitted() -> Iterator[tuple[str, str, set[str] | None]]:
    """Every emission in the source: where, the event's name, and its fields (None: given as ``**fields``)."""
    added = wrappers()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit"
            if not called or not node.args:
                continue
            keywords = {keyword.arg for keyword in node.keywords}
            if isinstance(node.func, ast.Attribute) and not ast.unparse(node.func.value).endswith("events"):
                keywords |= added.get(path.parent, set())
            fields = None if None in keywords else {name for name in keywords if name}
            for name in names_in(node.args[0]):
                yield f"{path.name}:{node.lineno}", name, fields


def test_every_emission_names_an_event_of_the_catalogue_and_brings_its_fields() -> None:
    faults = []
    for where, name, fields in emitted():
        if name not in CATALOGUE:
            faults.append(f"{where}: {name} is not in the catalogue")
        elif fields is not None and not fields_of(name) <= fields:
            faults.append(f"{where}: {name} lacks {fields_of(name) - fields}")
    assert not faults


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_event_reads_as_a_line(name: str) -> None:
    event = Event(name, dict.fromkeys(fields_of(name), "x"))
    assert "{" not in str(event)
    assert event.description.level in {logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_no_event_carries_task_arguments(name: str) -> None:
    assert not fields_of(name) & {"args", "kwargs", "body", "headers", "payload"}


def test_an_event_is_one_log_line_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="outbox_relay"):
        Events().emit("prune.pruned", rows=7)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("INFO", "pruned 7 rows")
    assert record.outbox_event == "prune.pruned"  # type: ignore[attr-defined]
    assert record.outbox_fields == {"rows": 7}  # type: ignore[attr-defined]


def test_a_level_that_nobody_reads_costs_no_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="outbox_relay"):
        write_log(Event("prune.pruned", {}))  # its text would not even fit
    assert not caplog.records


def test_an_event_outside_the_catalogue_is_a_programming_error() -> None:
    with pytest.raises(KeyError, match=r"odd\.event"):
        Events().emit("odd.event")


def test_what_a_subscriber_raises_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    events, heard = Events(), []

    def broken(event: Event) -> None:
        raise ValueError(event.name)

    events.subscribe(broken)
    events.subscribe(heard.append)
    events.emit("prune.pruned", rows=1)
    assert [event.name for event in heard] == ["prune.pruned"]
    assert "a subscriber failed on the event prune.pruned" in caplog.text


def test_a_field_that_is_missing_spoils_the_line_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    events = Events()
    events.subscribe(heard.append)
    with caplog.at_level(logging.INFO, logger="outbox_relay"):
        events.emit("prune.pruned")
    assert heard
    assert "a subscriber failed" in caplog.text


@pytest.mark.parametrize(
    ("rows", "line"), [(1, "pruned 1 row"), (2, "pruned 2 rows"), (21, "pruned 21 rows"), (0, "pruned 0 rows")]
)
def test_a_line_counts_one_row_as_one(rows: int, line: str) -> None:
    assert str(Event("prune.pruned", {"rows": rows})) == line
