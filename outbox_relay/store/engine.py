"""Connections to the outbox's database, set up so that no transaction of a relay can block others for long."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outbox_relay.errors import StoreAway, StoreError
from outbox_relay.store.driver import BINARY
from outbox_relay.store.sql import POSTGRESQL, SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import ExceptionContext

    from outbox_relay.store.schema import Tables

LOCK_TIMEOUT_MS = 5_000
IDLE_TIMEOUT_MS = 10_000
SQLITE_BUSY_MS = 30_000
POOL_SIZE = 5
#: A server that is gone without a word is found out within half a minute, not after the two hours of the system.
KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,  # milliseconds
}
MIGRATE_HINT = "the outbox's tables are not there, or not of this version: run 'outbox migrate'"


def open_engine(
    url: str | sa.URL, *, application: str = "outbox relay", named: str = "outbox_database_url"
) -> sa.Engine:
    """Return an engine on ``url`` for processes of the outbox (never the shop's own engine).

    ``named`` says where the URL comes from, for the message of an error.

    Raises:
        StoreError: the URL is not one, or names a database that the outbox does not know.
    """
    try:
        parsed = sa.make_url(url)
        dialect = parsed.get_backend_name()
        if dialect == SQLITE:
            if parsed.database in (None, "", ":memory:"):
                raise StoreError(
                    f"{named} names a SQLite database in memory, which no other process sees: name a file, "
                    "such as 'sqlite:///shop.db'"
                )
            engine = sa.create_engine(parsed)
            configure_sqlite(engine)
            return engine
        if dialect != POSTGRESQL:
            known = "postgresql+psycopg://… and sqlite:///…"
            raise StoreError(f"the outbox does not work on {dialect!r}: its databases are {known}")
        parsed = parsed.set(drivername="postgresql+psycopg")  # whatever the shop's own engine uses
        usual = {"connect_timeout": 10, "application_name": application, **KEEPALIVE}
        engine = sa.create_engine(
            parsed,
            pool_size=POOL_SIZE,
            pool_timeout=10,
            isolation_level="READ COMMITTED",  # whatever the database's default is: statements see what they waited for
            connect_args={name: value for name, value in usual.items() if name not in parsed.query},
        )
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        raise StoreError(f"{named} cannot be used: {error}") from error
    _configure_postgresql(engine)
    return engine


def configure_sqlite(engine: sa.Engine) -> None:
    """Give an engine on SQLite honest transactions; harmless when called twice.

    Python's driver begins a transaction only before a write, and none before a SAVEPOINT, so that what an
    outer rollback should undo may stay. Here every transaction begins with BEGIN IMMEDIATE, which also
    waits for its turn to write instead of failing half-way with "database is locked".
    """
    if event.contains(engine, "connect", _sqlite_connected):
        return
    event.listen(engine, "connect", _sqlite_connected)
    event.listen(engine, "begin", _sqlite_begun)


def _sqlite_connected(dbapi_connection: Any, record: object) -> None:
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _sqlite_begun(connection: sa.Connection) -> None:
    # The event also fires on AUTOCOMMIT connections, which would then sit in a transaction that nobody ends.
    options = connection.get_execution_options()
    if options.get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN" if options.get("outbox_reads") else "BEGIN IMMEDIATE")


def _configure_postgresql(engine: sa.Engine) -> None:
    event.listen(engine, "connect", _postgresql_connected)
    event.listen(engine, "begin", _postgresql_begun)
    event.listen(engine, "handle_error", _postgresql_failed)
    event.listen(engine, "before_cursor_execute", _postgresql_executes)


_TIMEOUTS = {"lock_timeout": LOCK_TIMEOUT_MS, "idle_in_transaction_session_timeout": IDLE_TIMEOUT_MS}


def _postgresql_connected(dbapi_connection: Any, record: Any) -> None:
    """Set the timeouts for the session, or, where a pooler shares sessions between clients, mark it for the other way.

    A pooler shows itself by the process id that it gives at connect, which is not the server process's. It
    may hand the next statement to another server process: no prepared statements then, and nothing set for longer
    than a transaction.
    """
    from outbox_relay.store.instants import read_any_instant  # noqa: PLC0415 - there may be no psycopg

    read_any_instant(dbapi_connection)
    cursor = dbapi_connection.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    pooled = cursor.fetchone()[0] != dbapi_connection.info.backend_pid
    record.info["outbox_pooled"] = pooled
    if pooled:
        dbapi_connection.prepare_threshold = None
    else:
        for name, milliseconds in _TIMEOUTS.items():
            cursor.execute(f"SET {name} = {milliseconds}")
    cursor.close()
    dbapi_connection.commit()


def _postgresql_begun(connection: sa.Connection) -> None:
    if connection.info.get("outbox_pooled"):
        for name, milliseconds in _TIMEOUTS.items():
            connection.exec_driver_sql(f"SET LOCAL {name} = {milliseconds}")


def _postgresql_executes(  # noqa: PLR0917 - SQLAlchemy's signature
    connection: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
) -> None:
    if context.execution_options.get(BINARY):
        cursor.format = 1  # psycopg.pq.Format.BINARY, which is not imported where there is no PostgreSQL


READ_ONLY = "25006"


def _postgresql_failed(context: ExceptionContext) -> None:
    """A server that takes no writes is no good any more, though it answers: after a failover it is the old primary."""
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


class Database:
    """An engine with the outbox's tables on it: what every part of the store works with."""

    def __init__(self, engine: sa.Engine, tables: Tables) -> None:
        self.engine = engine
        self.tables = tables
        self.dialect = engine.dialect.name

    @contextmanager
    def begin(self, *, reads: bool = False) -> Iterator[sa.Connection]:
        """A transaction: committed at the end of the block, rolled back when it raises.

        One that only ``reads`` does not wait for SQLite's one writer.

        Raises:
            StoreAway: the database cannot be reached, or did not answer in time; the same call may work later.
        """
        try:
            with self.engine.connect() as connection:
                if reads:
                    connection = connection.execution_options(outbox_reads=True)
                with connection.begin():
                    yield connection
        except PoolTimeout as error:
            raise StoreAway(_short(error)) from error
        except DBAPIError as error:
            if is_missing_table(error):
                raise StoreError(MIGRATE_HINT) from error
            if _is_away(error):
                raise StoreAway(_short(error)) from error
            raise


_SQLITE_AWAY = ("locked", "busy", "unable to open database file", "disk", "readonly")


def _is_away(error: DBAPIError) -> bool:
    """Whether the database is away or too busy; SQLite's driver has the same class for mistakes in a statement."""
    if error.connection_invalidated:
        return True
    if not isinstance(error, OperationalError):
        return False
    text = str(error.orig)
    return not type(error.orig).__module__.startswith("sqlite3") or any(one in text for one in _SQLITE_AWAY)


def is_missing_table(error: BaseException) -> bool:
    """Whether a statement failed because a table or a column of the outbox is not there."""
    original = getattr(error, "orig", None) or error  # SQLAlchemy's wrapper, or the driver's own
    if getattr(original, "sqlstate", None) in ("42P01", "42703", "3F000"):
        return True
    return any(text in str(original) for text in ("no such table", "no such column", "has no column named"))


def _short(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    return str(original).strip().split("\n")[0] or type(original).__name__
