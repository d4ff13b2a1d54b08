"""The page on cases says what is tested: each test that it names is there, and no lesson is left out."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.documents import DOCS, ROOT

PAGE = (DOCS / "cases.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`:]+\.py)::(\w+)`", PAGE)))
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| (B?\d)", line)]


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_test_that_is_named_is_there(file: str, name: str) -> None:
    assert name in functions(file)


def test_each_case_has_a_test_or_the_reason_why_not() -> None:
    held, open_ = PAGE.split("## Not held by a test")
    assert held.count("\n| B") + held.count("\n| ") > 50
    for line in held.splitlines():
        if re.match(r"\| (B?\d)", line):
            assert "::test_" in line, line
    assert "::test_" not in open_


def test_each_lesson_is_there_once() -> None:
    numbers = [int(number) for row in ROWS if row[0][0] != "B" for number in row[0].split(", ")]
    assert sorted(numbers) == list(range(1, 33))
