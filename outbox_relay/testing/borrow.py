"""Whatever a test stages on, as a connection to look at rows with, in the transaction that is open there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.orm import Session

from outbox_relay.staging.connections import accept
from outbox_relay.staging.django import raw_django
from outbox_relay.staging.psycopg import is_psycopg, raw_psycopg
from outbox_relay.store.sql import SQLITE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outbox_relay.store.raw import Connection


def borrow(given: Any) -> Connection:
    """Return the connection of a session, a connection of psycopg's or Django's, or an alias of Django's.

    Staging refuses connections that commit each statement by itself; a test may look at what was committed.

    Raises:
        StagingError: it is none of them.
    """
    target = accept(given)
    if isinstance(target, Session):
        return target.connection()
    if isinstance(target, sa.Connection):
        return target
    return Typed(raw_psycopg(target, speaks_binary=False) if is_psycopg(target) else raw_django(target))


class Typed:
    """A raw connection whose results have the types that the statement's columns have."""

    def __init__(self, raw: Connection) -> None:
        self._raw = raw
        self.dialect = raw.dialect

    def execute(self, statement: Any, parameters: Any = None, /) -> sa.Result[Any]:
        result = self._raw.execute(statement, parameters)
        names = list(result.keys())
        readers = self._readers(statement)
        rows = [tuple(self._read(readers.get(name), row[at]) for at, name in enumerate(names)) for row in result]
        return IteratorResult(SimpleResultMetaData(names), iter(rows))

    def exec_driver_sql(self, statement: str, parameters: Any = None, /) -> sa.Result[Any]:
        return self._raw.exec_driver_sql(statement, parameters)

    def get_execution_options(self) -> Mapping[str, Any]:
        return self._raw.get_execution_options()

    def _readers(self, statement: Any) -> dict[str, Callable[[Any], Any] | None]:
        columns = getattr(statement, "exported_columns", None)
        if columns is None:  # an UPDATE without RETURNING
            return {}
        return {
            name: column.type.dialect_impl(self.dialect).result_processor(self.dialect, None)
            for name, column in columns.items()
        }

    def _read(self, reader: Callable[[Any], Any] | None, value: Any) -> Any:
        """Read a value of the driver's; Django's has made instants of SQLite's texts already."""
        if self.dialect.name == SQLITE and hasattr(value, "astimezone"):
            value = value.isoformat(" ")
        return value if reader is None or value is None else reader(value)
