"""The outbox's own migrations, run from code: no ini file, and a version table that no other Alembic touches."""

from __future__ import annotations

import io
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import OperationalError

from outbox_relay.errors import StoreAway, StoreError
from outbox_relay.store.schema import build
from outbox_relay.store.sql import POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_relay.store.schema import Tables

FOLDER = Path(__file__).parent / "migrations"
ONCE_FOLDER = FOLDER / "once" / "versions"
LOCK_TIMEOUT = timedelta(seconds=5)


def migrate(
    engine: sa.Engine,
    prefix: str = "outbox_",
    schema: str | None = None,
    *,
    sql: bool = False,
    once_only: bool = False,
    lock_timeout: timedelta = LOCK_TIMEOUT,
) -> None:
    """Bring the tables to this version; does nothing where they are already.

    Everything happens in one transaction. A lock that is not free within ``lock_timeout`` ends it: waiting for longer
    would keep everybody else waiting behind it. With ``sql``, the statements for an empty database are printed
    (to stdout) and nothing is run. With ``once_only`` the one table is made that ``outbox.once`` needs in a database of
    a shop's that is not the outbox's, with a version of its own.

    Raises:
        StoreAway: a lock was not free in time, or the database is away.
        StoreError: the tables belong to a newer version.
    """
    tables = build(prefix, schema)
    config = _config(tables, once_only=once_only)
    if sql:
        config.attributes["dialect"] = engine.dialect.name
        command.upgrade(config, "head", sql=True)
        return
    try:
        with _patient(engine, lock_timeout) as connection:
            _take_turns(connection, tables)
            config.attributes["connection"] = connection
            _check_known(config, connection, tables)
            if schema is not None and connection.dialect.name == POSTGRESQL:
                connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
            command.upgrade(config, "head")
    except OperationalError as error:
        if _is_lock_timeout(error):
            seconds = lock_timeout.total_seconds()
            raise StoreAway(
                f"gave up after {seconds:g} s: another transaction holds a lock on the outbox's tables. "
                "Nothing was changed; end that transaction (see pg_stat_activity) or try again later"
            ) from error
        raise StoreAway(str(error.orig).strip().split("\n")[0]) from error


def as_statements(tables: Tables, dialect: str, revisions: str) -> list[str]:
    """The SQL that leads to a revision from nothing, or from another one (``"0001:0002"``), a statement at a time.

    For who brings the tables into a database in another way. The version table is kept up to date too.
    """
    config = _config(tables)
    config.attributes["dialect"] = dialect
    written = _Statements()
    config.output_buffer = written
    command.upgrade(config, revisions, sql=True)
    return [one for one in written.statements if one not in ("BEGIN", "COMMIT")]


class _Statements(io.StringIO):
    """What Alembic writes to: it writes each statement at once."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[str] = []

    def write(self, text: str) -> int:
        lines = [line for line in text.splitlines() if not line.startswith("--")]
        if statement := "\n".join(lines).strip().removesuffix(";"):
            self.statements.append(statement)
        return len(text)


def current(connection: sa.Connection, tables: Tables, *, once_only: bool = False) -> str | None:
    """The revision that the database is at; None where the outbox was never migrated."""
    version = version_table(tables, once_only=once_only)
    options = {"version_table": version, "version_table_schema": tables.metadata.schema}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def head(tables: Tables) -> str:
    """The revision of this version of the code."""
    revision = ScriptDirectory.from_config(_config(tables)).get_current_head()
    assert revision is not None
    return revision


def version_table(tables: Tables, *, once_only: bool = False) -> str:
    return f"{tables.prefix}once_alembic_version" if once_only else f"{tables.prefix}alembic_version"


def _config(tables: Tables, *, once_only: bool = False) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    if once_only:
        config.set_main_option("version_locations", str(ONCE_FOLDER).replace("%", "%%"))
    config.attributes["tables"] = tables
    config.attributes["once_only"] = once_only
    return config


@contextmanager
def _patient(engine: sa.Engine, lock_timeout: timedelta) -> Iterator[sa.Connection]:
    """A transaction that waits for a lock for so long and no longer."""
    milliseconds = int(lock_timeout.total_seconds() * 1000)
    with engine.connect() as connection:
        if connection.dialect.name == POSTGRESQL:
            with connection.begin():
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")
                yield connection
            return
        # SQLite takes its only lock as the transaction begins, so the limit has to be there before.
        driver: Any = connection.connection.driver_connection
        (before,) = driver.execute("PRAGMA busy_timeout").fetchone()
        driver.execute(f"PRAGMA busy_timeout = {milliseconds}")
        try:
            with connection.begin():
                yield connection
        finally:
            driver.execute(f"PRAGMA busy_timeout = {before}")


def _take_turns(connection: sa.Connection, tables: Tables) -> None:
    """Two migrations at once: the second waits for the first."""
    if connection.dialect.name == POSTGRESQL:
        place = sa.func.hashtext(f"outbox_relay {tables.metadata.schema or ''}.{tables.prefix}")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(place)))


def _check_known(config: Config, connection: sa.Connection, tables: Tables) -> None:
    revision = current(connection, tables, once_only=config.attributes["once_only"])
    known: set[Any] = {one.revision for one in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"the outbox's tables are at revision {revision}, which this version of outbox_relay does not know: "
            "they belong to a newer one, so upgrade outbox_relay"
        )


def _is_lock_timeout(error: OperationalError) -> bool:
    return getattr(error.orig, "sqlstate", None) == "55P03" or "database is locked" in str(error.orig)
