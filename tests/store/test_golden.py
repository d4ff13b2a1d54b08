"""Every statement as each database gets it, kept beside the code: a change of SQL is seen in the diff.

``UPDATE_GOLDEN=1 pytest tests/store/test_golden.py`` writes the files anew.
"""

from __future__ import annotations

import inspect
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.dialects import postgresql, sqlite

from outbox_relay.core.namespaces import Scope
from outbox_relay.store.schema import build
from outbox_relay.store.statements import (
    claiming,
    directives,
    governing,
    inprocess,
    operating,
    parking,
    plain,
    publishing,
    rearming,
    register,
    settling,
    staging,
    takeback,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

GOLDEN = Path(__file__).parent / "golden"
DIALECTS: dict[str, sa.Dialect] = {
    "postgresql": postgresql.psycopg.dialect(),  # type: ignore[no-untyped-call]
    "sqlite": sqlite.dialect(),  # type: ignore[no-untyped-call]
}
TABLES = build()
MODULES = (
    claiming,
    directives,
    parking,
    publishing,
    settling,
    rearming,
    register,
    staging,
    operating,
    governing,
    takeback,
    plain,
    inprocess,
)
NARROW = claiming.Narrow(guarded=True, sharded=True)
FILTERED = frozenset({"ids", "namespace", "task", "workflow_id", "error"})

# How to call those that take more than the tables and the dialect: variant → arguments.
SPECIAL: dict[Callable[..., Any], dict[str, Callable[[str], tuple[Any, ...]]]] = {
    rearming.stale: {"": lambda dialect: (TABLES, dialect == "postgresql")},
    register.forget_processes: {"_relay": lambda _: (TABLES, "relay"), "_worker": lambda _: (TABLES, "worker")},
    governing.namespaces: {"": lambda _: (TABLES,), "_one": lambda _: (TABLES, True)},
    governing.put_namespace: {
        "": lambda dialect: (TABLES, dialect, frozenset(governing.SETTABLE)),
        "_bare": lambda dialect: (TABLES, dialect, frozenset()),
    },
    governing.change_namespace: {"": lambda _: (TABLES, frozenset(governing.SETTABLE))},
    claiming.claim_all: {"": lambda _: (TABLES,), "_narrow": lambda _: (TABLES, NARROW)},
    claiming.due_namespaces: {
        "": lambda dialect: (TABLES, dialect),
        "_narrow": lambda dialect: (TABLES, dialect, NARROW),
        "_strangers": lambda dialect: (TABLES, dialect, NARROW, True),
    },
    claiming.claim_shares: {
        "": lambda dialect: (TABLES, dialect),
        "_narrow": lambda dialect: (TABLES, dialect, NARROW),
    },
    claiming.claimed_rows: {"": lambda _: (TABLES,), "_sharded": lambda _: (TABLES, NARROW)},
    inprocess.next_row: {"": lambda _: (TABLES, False), "_delayed": lambda _: (TABLES, True)},
    parking.unpark: {f"_{scope.value}": lambda dialect, scope=scope: (TABLES, dialect, scope) for scope in Scope},
    operating.list_rows: {
        "": lambda _: (TABLES, None, frozenset()),
        "_pending": lambda _: (TABLES, "pending", frozenset({"namespace"})),
        "_claimed": lambda _: (TABLES, "claimed", frozenset({"task"})),
        "_failed": lambda _: (TABLES, "failed", FILTERED - {"ids"}),
    },
    operating.lock_for_cancel: {"": lambda dialect: (TABLES, dialect, frozenset({"ids", "workflow_id"}))},
    operating.redrive: {"": lambda dialect: (TABLES, dialect, FILTERED)},
    operating.discard: {"": lambda dialect: (TABLES, dialect, FILTERED)},
    operating.prune: {"": lambda dialect: (TABLES, dialect, "done")},
    staging.insert_values: {
        "": lambda dialect: (TABLES, dialect),
        "_waking": lambda dialect: (
            TABLES,
            dialect,
            dialect == "postgresql",
            "outbox_wake" if dialect == "postgresql" else None,
        ),
        "_plain": lambda dialect: (TABLES, dialect, False, None, True),
    },
    staging.insert_alike: {"": lambda _: (TABLES,), "_waking": lambda _: (TABLES, True, "outbox_wake")},
    staging.insert_arrays: {"": lambda _: (TABLES,), "_waking": lambda _: (TABLES, True, "outbox_wake")},
}
ONLY = {
    claiming.claim_all: "postgresql",
    claiming.lock_quotas: "postgresql",
    parking.park: "postgresql",
    settling.lock_and_settle_done: "postgresql",
    parking.park_all: "sqlite",
    staging.insert_arrays: "postgresql",
    staging.insert_alike: "postgresql",
    staging.mint_namespaces: "sqlite",
}


def _usual(function: Callable[..., Any]) -> Callable[[str], tuple[Any, ...]]:
    """Most statements take the tables, and the dialect where it matters."""
    takes_dialect = len(inspect.signature(function).parameters) == 2
    return lambda dialect: (TABLES, dialect) if takes_dialect else (TABLES,)


def every_statement() -> dict[tuple[str, str], Callable[[], Any]]:
    """(dialect, name) → what makes the statement."""
    found: dict[tuple[str, str], Callable[[], Any]] = {}
    for module in MODULES:
        for name, function in vars(module).items():
            if not hasattr(function, "cache_info") or function.__module__ != module.__name__:
                continue
            for dialect in DIALECTS:
                if ONLY.get(function, dialect) != dialect:
                    continue
                variants = SPECIAL.get(function, {"": _usual(function)})
                for variant, arguments in variants.items():
                    label = f"{module.__name__.rpartition('.')[2]}.{name}{variant}"
                    found[dialect, label] = partial(function, *arguments(dialect))
    return found


STATEMENTS = every_statement()


@pytest.mark.parametrize(("dialect", "name"), STATEMENTS, ids=str)
def test_a_statement_is_what_its_golden_file_says(dialect: str, name: str) -> None:
    compiled = STATEMENTS[dialect, name]().compile(dialect=DIALECTS[dialect])
    sql = "\n".join(line.rstrip() for line in str(compiled).splitlines()) + "\n"
    path = GOLDEN / dialect / f"{name}.sql"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sql)
    assert path.read_text() == sql


def test_no_golden_file_is_left_of_a_statement_that_is_gone() -> None:
    kept = {(path.parent.name, path.stem) for path in GOLDEN.glob("*/*.sql")}
    assert kept == set(STATEMENTS)


@pytest.mark.parametrize(("dialect", "name"), STATEMENTS, ids=str)
def test_no_status_is_a_parameter(dialect: str, name: str) -> None:
    """A partial index cannot be proven from a parameter."""
    compiled = STATEMENTS[dialect, name]().compile(dialect=DIALECTS[dialect])
    statuses = {"pending", "claimed", "done", "failed", "cancelled"}
    assert not statuses & {value for value in compiled.params.values() if isinstance(value, str)}
    assert "status" not in compiled.params
