"""Statements of a relay's main path, handed to psycopg as text and read back in PostgreSQL's binary form."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa

#: An execution option: the results of this statement come in binary form, see :mod:`outbox_relay.store.engine`.
BINARY = "outbox_binary"

SERIALIZATION_FAILURE = "40001"  # an SQLSTATE


def fetch(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> Sequence[sa.Row[Any]]:
    """Execute a statement and return its rows.

    On psycopg they are as the driver reads them: instants in the session's time zone, and nothing of it is converted
    once more. With bytes in every row, and hundreds of rows, that is a good part of a relay's time.
    """
    if connection.dialect.driver != "psycopg":
        return connection.execute(statement, parameters).all()
    text = psycopg_text(statement, connection.dialect)
    return connection.exec_driver_sql(text, dict(parameters), execution_options={BINARY: True}).all()


def execute(connection: sa.Connection, statement: Any, parameters: Mapping[str, Any]) -> int:
    """Execute a statement that returns no rows; return how many it has changed."""
    if connection.dialect.driver != "psycopg":
        return int(connection.execute(statement, parameters).rowcount)
    return int(connection.exec_driver_sql(psycopg_text(statement, connection.dialect), dict(parameters)).rowcount)


@lru_cache(maxsize=64)
def psycopg_text(statement: Any, dialect: sa.Dialect) -> str:
    """A statement as text, with parameters in PostgreSQL's binary form.

    To find the text in SQLAlchemy's own cache takes longer than a local server's answer, and arrays of bytes in text
    form take twice the time of binary ones.
    """
    return re.sub(r"%\((\w+)\)s", r"%(\1)b", str(statement.compile(dialect=dialect)))
