"""What the database itself puts into the columns of a row that plain SQL leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    from sqlalchemy.sql.compiler import SQLCompiler


class random_key(FunctionElement[str]):  # noqa: N801 - reads as SQL
    """A random text that nobody else has."""

    type = sa.Text()
    inherit_cache = True


class no_bytes(FunctionElement[bytes]):  # noqa: N801
    """An empty string of bytes."""

    type = sa.LargeBinary()
    inherit_cache = True


class this_instant(FunctionElement[Any]):  # noqa: N801
    """The instant of the insert, however long ago its transaction began."""

    type = sa.DateTime()
    inherit_cache = True


@compiles(random_key)
def _random_key(element: random_key, compiler: SQLCompiler, **kw: Any) -> str:
    return "(gen_random_uuid())::text"


@compiles(random_key, "sqlite")
def _random_key_sqlite(element: random_key, compiler: SQLCompiler, **kw: Any) -> str:
    return "lower(hex(randomblob(16)))"


@compiles(no_bytes)
def _no_bytes(element: no_bytes, compiler: SQLCompiler, **kw: Any) -> str:
    return "''::bytea"


@compiles(no_bytes, "sqlite")
def _no_bytes_sqlite(element: no_bytes, compiler: SQLCompiler, **kw: Any) -> str:
    return "x''"


@compiles(this_instant)
def _this_instant(element: this_instant, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(this_instant, "sqlite")
def _this_instant_sqlite(element: this_instant, compiler: SQLCompiler, **kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'"


NOTHING = sa.text("''")
PLAIN: dict[str, Any] = {
    "namespace": sa.text("'default'"),
    "dispatch_key": random_key(),
    "content_hash": no_bytes(),
    "task_queue": NOTHING,
    "exchange": NOTHING,
    "routing_key": NOTHING,
    "task_id": random_key(),
    "body": no_bytes(),
    "content_type": NOTHING,
    "content_encoding": NOTHING,
    "headers": no_bytes(),
    "properties": no_bytes(),
    "visible_after": this_instant(),
    "created_at": this_instant(),
}
"""By column: the defaults that make ``INSERT INTO outbox_row (task, args)`` a valid row."""
