"""The marker table alone, for a database that is not the outbox's. Where the outbox's own tables are, it is there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from outbox_relay.store.schema import Instant

revision = "once_0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    options = op.get_context().opts
    marker = sa.Table(
        f"{options['tables'].prefix}once",
        sa.MetaData(schema=options["version_table_schema"]),
        sa.Column("row_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("task_id", sa.Text, primary_key=True),
        sa.Column("created_at", Instant, nullable=False),
    )
    op.execute(sa.schema.CreateTable(marker, if_not_exists=True))
