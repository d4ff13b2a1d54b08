"""The few pieces of SQL that each database spells in its own way, so that statements are written once.

Instants are always the database's own: no statement takes the time from the client.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from outbox_relay.store.schema import Instant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy.sql.compiler import SQLCompiler

POSTGRESQL = "postgresql"
SQLITE = "sqlite"


class now(FunctionElement["datetime"]):  # noqa: N801 - reads as SQL
    """The instant at which the statement began; stable within it, so that an index can be searched by it."""

    type = Instant()
    inherit_cache = True


class clock(FunctionElement["datetime"]):  # noqa: N801
    """The instant at this moment, however long ago the transaction or the statement began."""

    type = Instant()
    inherit_cache = True


class after(FunctionElement["datetime"]):  # noqa: N801
    """``after(seconds)`` or ``after(seconds, instant)``: so many seconds after the instant, or after now."""

    type = Instant()
    inherit_cache = True


class latest(FunctionElement["datetime"]):  # noqa: N801
    """The later one of instants, none of which may be NULL."""

    type = Instant()
    inherit_cache = True


class new_token(FunctionElement[UUID]):  # noqa: N801
    """A random claim token of 128 bits, another one for each row."""

    type = sa.Uuid()
    inherit_cache = True


_SQLITE_FORMAT = "'%Y-%m-%d %H:%M:%f'"


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "statement_timestamp()"


@compiles(clock)
def _clock(element: clock, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(now, SQLITE)
@compiles(clock, SQLITE)
def _now_sqlite(element: now | clock, compiler: SQLCompiler, **kw: Any) -> str:
    # Milliseconds are all that SQLite knows; the three zeros make its text sort and read like SQLAlchemy's.
    return f"strftime({_SQLITE_FORMAT}, 'now') || '000'"


@compiles(after)
def _after(element: after, compiler: SQLCompiler, **kw: Any) -> str:
    seconds, *base = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{base[0] if base else 'statement_timestamp()'} + make_interval(secs => {seconds})"


@compiles(after, SQLITE)
def _after_sqlite(element: after, compiler: SQLCompiler, **kw: Any) -> str:
    seconds, *base = (compiler.process(clause, **kw) for clause in element.clauses)
    start = base[0] if base else "'now'"
    return f"strftime({_SQLITE_FORMAT}, {start}, printf('%+.3f seconds', {seconds})) || '000'"


@compiles(latest)
def _latest(element: latest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"greatest({compiler.process(element.clauses, **kw)})"


@compiles(latest, SQLITE)
def _latest_sqlite(element: latest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"max({compiler.process(element.clauses, **kw)})"


@compiles(new_token)
def _new_token(element: new_token, compiler: SQLCompiler, **kw: Any) -> str:
    return "gen_random_uuid()"


@compiles(new_token, SQLITE)
def _new_token_sqlite(element: new_token, compiler: SQLCompiler, **kw: Any) -> str:
    return "lower(hex(randomblob(16)))"


def literal(value: str) -> sa.ColumnElement[str]:
    """A constant of our own, written into the SQL: a partial index cannot be proven from a bound parameter."""
    return sa.literal_column(f"'{value}'", sa.Text)


# -- many values in one statement ------------------------------------------------------------------------------------


def given(dialect: str, name: str = "given", **columns: sa.types.TypeEngine[Any]) -> sa.FromClause:
    """A table of values that travels with the statement; :func:`values` makes its parameters.

    PostgreSQL unnests one array a column, SQLite reads a JSON list: the SQL is the same for any number of rows.
    """
    if dialect == POSTGRESQL:
        arrays = [sa.bindparam(f"{name}_{key}", type_=sa.ARRAY(type_)) for key, type_ in columns.items()]
        table = sa.func.unnest(*arrays).table_valued(*(sa.column(key, type_) for key, type_ in columns.items()))
        return table.render_derived(name=name)
    items = sa.func.json_each(sa.bindparam(name, type_=sa.Text)).table_valued("value", name=f"{name}_items")
    parts = [
        sa.type_coerce(sa.func.json_extract(items.c.value, sa.literal_column(f"'$[{at}]'")), type_).label(key)
        for at, (key, type_) in enumerate(columns.items())
    ]
    return sa.select(*parts).select_from(items).subquery(name)


def values(dialect: str, name: str = "given", **columns: Sequence[Any]) -> dict[str, Any]:
    """The parameters of :func:`given`: one sequence a column, all of the same length."""
    if dialect == POSTGRESQL:
        return {f"{name}_{key}": list(column) for key, column in columns.items()}
    rows = list(zip(*columns.values(), strict=True))
    return {name: json.dumps(rows, default=_plain)}


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex
    if hasattr(value, "astimezone"):
        return sqlite_text(value)
    raise TypeError(f"{type(value).__name__} does not go into JSON")


def sqlite_text(instant: datetime) -> str:
    """An instant as SQLAlchemy writes it into SQLite."""
    bound = Instant().process_bind_param(instant, _SQLITE_DIALECT)
    assert bound is not None
    return bound.strftime("%Y-%m-%d %H:%M:%S.%f")


_SQLITE_DIALECT = sa.create_mock_engine("sqlite://", lambda *_: None).dialect
