"""Rows that plain SQL inserts: their arguments as JSON, and defaults for all that is Celery's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import sqlalchemy as sa
from alembic import op

from outbox_relay.store.defaults import PLAIN

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    options = op.get_context().opts
    prefix, schema = options["tables"].prefix, options["version_table_schema"]
    if op.get_context().dialect.name == "sqlite":
        _make_anew(prefix)
    else:
        _alter(f"{prefix}row", schema)
    meta = sa.table(f"{prefix}meta", sa.column("schema_version", sa.Integer), schema=schema)
    op.execute(sa.update(meta).values(schema_version=2))


def _alter(name: str, schema: str | None) -> None:
    """PostgreSQL changes its catalogue alone: no row is read or written."""
    for column in ("args", "kwargs"):
        op.add_column(name, sa.Column(column, sa.Text), schema=schema)
    for column, default in PLAIN.items():
        op.alter_column(
            name, column, server_default=sa.text(str(default.compile(dialect=op.get_context().dialect))), schema=schema
        )


def _make_anew(prefix: str) -> None:
    """SQLite can change no default: the table is made again, and its ids are never given a second time."""
    first: Any = import_module("outbox_relay.store.migrations.versions.0001_first_tables")
    _, row, *_ = first._tables(prefix, None)
    old = sa.table(f"{prefix}row_0001", *(sa.column(one.name) for one in row.columns))
    names = [one.name for one in row.columns]
    for column, default in PLAIN.items():
        row.c[column].server_default = sa.DefaultClause(default)
    for column in ("args", "kwargs"):
        row.append_column(sa.Column(column, sa.Text))
    for index in row.indexes:
        op.execute(sa.schema.DropIndex(index))
    op.rename_table(row.name, old.name)
    op.execute(sa.schema.CreateTable(row))
    op.execute(sa.insert(row).from_select(names, sa.select(*(old.c[one] for one in names))))
    last = f"SELECT '{row.name}', seq FROM sqlite_sequence WHERE name = '{old.name}'"
    op.execute(f"DELETE FROM sqlite_sequence WHERE name = '{row.name}'")
    op.execute(f"INSERT INTO sqlite_sequence (name, seq) {last}")
    op.drop_table(old.name)
    for index in sorted(row.indexes, key=lambda one: str(one.name)):
        op.execute(sa.schema.CreateIndex(index))
