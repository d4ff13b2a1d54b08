"""The few statements of staging on a connection that is not SQLAlchemy's: psycopg's own, or Django's.

A statement is written once, as SQLAlchemy Core; here it becomes text and parameters for somebody else's cursor. No
engine takes part, and none of the caller's settings are touched.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData

from outbox_relay.errors import StoreError
from outbox_relay.store.engine import MIGRATE_HINT, is_missing_table
from outbox_relay.store.sql import POSTGRESQL, SQLITE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Processor = Callable[[Any], Any]
    Found = tuple[Sequence[str], Sequence[Sequence[Any]]]
    Run = Callable[[str, Any, bool], Found]


class Connection(Protocol):
    """What staging needs of a connection: a part of SQLAlchemy's own, or a :class:`RawConnection`."""

    @property
    def dialect(self) -> Any: ...

    def execute(self, statement: Any, parameters: Any = None, /) -> sa.Result[Any]: ...

    def exec_driver_sql(self, statement: str, parameters: Any = None, /) -> sa.Result[Any]: ...

    def get_execution_options(self) -> Mapping[str, Any]: ...


class RawConnection:
    """A driver's connection, as far as staging needs one.

    ``run`` executes a text with its parameters (a mapping on PostgreSQL, a sequence on SQLite) and returns the names of
    the columns and the rows, if it is told that there are rows. ``speaks_binary`` says that psycopg's binary
    placeholders may be used, and ``format_style`` that the cursor wants ``%s`` for SQLite's ``?``, as Django's does.
    """

    def __init__(
        self,
        dialect: str,
        run: Run,
        *,
        speaks_binary: bool = False,
        format_style: bool = False,
    ) -> None:
        self.dialect = _dialect(dialect, speaks_binary=speaks_binary)
        self._run = run
        self._format_style = format_style

    def execute(self, statement: Any, parameters: Any = None) -> sa.Result[Any]:
        """Execute a Core statement; a list of parameters executes it once for each."""
        many = parameters if isinstance(parameters, list) else [parameters or {}]
        compiled, text, processors = _compiled(statement, self.dialect, self._format_style)
        returns = len(statement.exported_columns) > 0
        columns: Sequence[str] = ()
        rows: list[Sequence[Any]] = []
        for one in many:
            given = compiled.construct_params(one)
            for name, processor in processors.items():
                given[name] = processor(given[name])
            in_order = [given[name] for name in compiled.positiontup] if compiled.positional else given
            columns, found = self._ran(text, in_order, returns)
            rows += found
        return _result(columns, rows)

    def exec_driver_sql(self, statement: str, parameters: Any = None) -> sa.Result[Any]:
        """Execute a text as it is."""
        returns = statement.startswith("SELECT") or "RETURNING" in statement
        return _result(*self._ran(statement, parameters, returns))

    def get_execution_options(self) -> Mapping[str, Any]:
        return {}

    def _ran(self, text: str, parameters: Any, returns: bool) -> Found:
        """Let the driver's own errors through: the caller knows them, and what to do about them."""
        try:
            return self._run(text, parameters, returns)
        except Exception as error:
            if is_missing_table(error) or (error.__cause__ is not None and is_missing_table(error.__cause__)):
                raise StoreError(MIGRATE_HINT) from error
            raise


def _result(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> sa.Result[Any]:
    return IteratorResult(SimpleResultMetaData(list(columns)), iter([tuple(row) for row in rows]))


@lru_cache(maxsize=8)
def _dialect(name: str, *, speaks_binary: bool) -> sa.Dialect:
    if name not in (POSTGRESQL, SQLITE):
        raise StoreError(f"the outbox does not stage on {name!r}: its databases are PostgreSQL and SQLite")
    url = sa.make_url("postgresql+psycopg://" if name == POSTGRESQL else "sqlite://")
    dialect: sa.Dialect = url.get_dialect()()
    if not speaks_binary:
        dialect.driver = "raw"
    return dialect


@lru_cache(maxsize=64)
def _compiled(statement: Any, dialect: sa.Dialect, format_style: bool) -> tuple[Any, str, Mapping[str, Processor]]:
    """A statement, its text, and what makes a driver's value of some of its parameters."""
    compiled = statement.compile(dialect=dialect)
    processors = {}
    for name, bind in compiled.binds.items():
        if (processor := bind.type.dialect_impl(dialect).bind_processor(dialect)) is not None:
            processors[name] = processor
    text = str(compiled)
    if format_style and compiled.positional:
        text = text.replace("%", "%%").replace("?", "%s")
    return compiled, text, processors
