"""The outbox's tables by way of a Django connection: one schema, whoever migrates it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import sqlalchemy as sa
from django.conf import settings
from django.db import connections, router, transaction
from django.db.migrations.operations.base import Operation

from outbox_relay.core.placement import DEFAULT_NAMESPACE
from outbox_relay.store.migrate import as_statements, head, version_table
from outbox_relay.store.schema import SCHEMA_VERSION, Tables, build
from outbox_relay.store.sql import POSTGRESQL, SQLITE, now

if TYPE_CHECKING:
    from collections.abc import Iterable

KNOWN = {"postgresql": POSTGRESQL, "sqlite": SQLITE}
LABEL = "outbox_relay"


def the_tables() -> Tables:
    """The tables by their names in this project: as ``CELERY_OUTBOX_TABLE_PREFIX`` (or without CELERY_) says."""
    for name in ("CELERY_OUTBOX_TABLE_PREFIX", "OUTBOX_TABLE_PREFIX"):
        if (prefix := getattr(settings, name, None)) is not None:
            return build(str(prefix))
    return build()


class RunRevision(Operation):
    """Bring the tables from one revision of the outbox's own migrations to the next."""

    reversible = True
    reduces_to_sql = True

    def __init__(self, before: str | None, revision: str) -> None:
        self.before = before
        self.revision = revision

    def describe(self) -> str:
        return f"Bring the outbox's tables to revision {self.revision}"

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The models of these tables are made by operations of their own."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        dialect = self._dialect(app_label, schema_editor)
        tables = the_tables()
        if dialect is None or self._is_there(schema_editor, tables):
            return
        step = self.revision if self.before is None else f"{self.before}:{self.revision}"
        for statement in as_statements(tables, dialect, step):
            schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if self._dialect(app_label, schema_editor) is None or self.before is not None:
            return
        tables = the_tables()
        names = [one.name for one in reversed(tables.metadata.sorted_tables)]
        for name in (*names, version_table(tables)):
            schema_editor.execute(f"DROP TABLE IF EXISTS {schema_editor.quote_name(name)}", params=None)

    def _dialect(self, app_label: str, schema_editor: Any) -> str | None:
        """The database that the tables go to; None where a router keeps this app out of it."""
        connection = schema_editor.connection
        if not router.allow_migrate(connection.alias, app_label):
            return None
        return KNOWN.get(connection.vendor)

    def _is_there(self, schema_editor: Any, tables: Tables) -> bool:
        """Whether ``outbox migrate`` has been here first."""
        if schema_editor.collect_sql:
            return False
        with schema_editor.connection.cursor() as cursor:
            if version_table(tables) not in schema_editor.connection.introspection.table_names(cursor):
                return False
            cursor.execute(f"SELECT version_num FROM {schema_editor.quote_name(version_table(tables))}")
            found = cursor.fetchone()
        return found is not None and str(found[0]) >= self.revision


def complete(using: str) -> None:
    """Make what tests that run without migrations lack: Django makes tables of models, and those are not all.

    Raises:
        django.db.Error: the database refuses.
    """
    connection = connections[using]
    dialect = KNOWN.get(connection.vendor)
    tables = the_tables()
    if dialect is None or not router.allow_migrate(using, LABEL):
        return
    there = set(connection.introspection.table_names())
    if tables.row.name not in there or tables.meta.name in there:
        return  # the app's migrations are not applied, or all of them are
    version = sa.Table(version_table(tables), sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True))
    missing = [one for one in (*tables.metadata.sorted_tables, version) if one.name not in there]
    first = (
        sa.insert(version).values(version_num=head(tables)),
        sa.insert(tables.namespace).values(namespace=DEFAULT_NAMESPACE, created_at=now()),
        sa.insert(tables.meta).values(id=1, outbox_id=uuid4(), schema_version=SCHEMA_VERSION, created_at=now()),
    )
    with transaction.atomic(using=using), connection.cursor() as cursor:
        for statement in _as_text(dialect, missing, first):
            cursor.execute(statement)


def _as_text(dialect: str, tables: Iterable[sa.Table], inserts: Iterable[sa.Insert]) -> list[str]:
    statements: list[str] = []
    url = sa.make_url("postgresql+psycopg://" if dialect == POSTGRESQL else "sqlite://")
    engine: Any = sa.create_mock_engine(
        url, lambda sql, *_, **__: statements.append(str(sql.compile(dialect=engine.dialect)))
    )
    for table in tables:
        table.create(engine, checkfirst=False)
    literal = {"literal_binds": True}
    statements += [str(one.compile(dialect=engine.dialect, compile_kwargs=literal)) for one in inserts]
    return statements
