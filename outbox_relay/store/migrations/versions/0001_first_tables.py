"""The first tables.

They are written out here, not taken from ``outbox_relay.store.schema``: that module moves on, this step does not.
"""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op

from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import now

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    options = op.get_context().opts
    prefix, schema = options["tables"].prefix, options["version_table_schema"]
    metadata, row, namespace, meta = _tables(prefix, schema)
    for table in metadata.sorted_tables:
        marker = table.name == f"{prefix}once"  # `migrate --once-only` may have made that one
        op.execute(sa.schema.CreateTable(table, if_not_exists=marker))
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            op.execute(sa.schema.CreateIndex(index))
    if op.get_context().dialect.name == "postgresql":
        room = sa.DDL("ALTER TABLE %(fullname)s SET (fillfactor = 50)")  # type: ignore[no-untyped-call]  # it is
        op.execute(room.against(row))
    op.execute(sa.insert(namespace).values(namespace="default", created_at=now()))
    op.execute(sa.insert(meta).values(id=1, outbox_id=uuid.uuid4(), schema_version=1, created_at=now()))


def _tables(prefix: str, schema: str | None) -> tuple[sa.MetaData, sa.Table, sa.Table, sa.Table]:
    metadata = sa.MetaData(schema=schema)

    def column(name: str, type_: Any, *, null: bool = False, **options: Any) -> sa.Column[Any]:
        return sa.Column(name, type_, nullable=null, **options)

    identity = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    row = sa.Table(
        f"{prefix}row",
        metadata,
        sa.Column("id", identity, sa.Identity(), primary_key=True),
        column("namespace", sa.Text),
        column("dispatch_key", sa.Text),
        column("content_hash", sa.LargeBinary),
        column("workflow_id", sa.Text, null=True),
        column("run_id", sa.Text, null=True),
        column("ordinal", sa.BigInteger, null=True),
        column("task_queue", sa.Text),
        column("node", sa.Text, null=True),
        column("exchange", sa.Text),
        column("routing_key", sa.Text),
        column("task", sa.Text),
        column("task_id", sa.Text),
        column("body", sa.LargeBinary),
        column("content_type", sa.Text),
        column("content_encoding", sa.Text),
        column("headers", sa.LargeBinary),
        column("properties", sa.LargeBinary),
        column("status", sa.Text, server_default=sa.text("'pending'")),
        column("parked", sa.Boolean, server_default=sa.false()),
        column("attempt", sa.Integer, server_default=sa.text("0")),
        column("failures", sa.Integer, server_default=sa.text("0")),
        column("retries", sa.Integer, server_default=sa.text("0")),
        column("max_attempts", sa.Integer, null=True),
        column("rearms", sa.Integer, server_default=sa.text("0")),
        column("vanished", sa.Integer, server_default=sa.text("0")),  # re-arms in a row of a task known to run
        column("silent", sa.Integer, server_default=sa.text("0")),  # re-arms of a message that nobody reported on
        column("visible_after", Instant),
        column("expires_at", Instant, null=True),
        column("claim_token", sa.Uuid, null=True),
        column("claimed_at", Instant, null=True),
        column("claimed_by", sa.Uuid, null=True),
        column("lease_until", Instant, null=True),
        column("published_at", Instant, null=True),
        column("published_to", sa.Text, null=True),
        column("started_at", Instant, null=True),
        column("worker", sa.Text, null=True),
        column("error", sa.Text, null=True),
        column("settle_on", sa.Text, null=True),
        column("created_at", Instant),
        column("settled_at", Instant, null=True),
        sa.UniqueConstraint("namespace", "dispatch_key", name=f"{prefix}row_dispatch_key"),
        sqlite_autoincrement=True,
    )
    due = sa.text("status = 'pending' AND NOT parked")
    claimed = sa.text("status = 'claimed'")
    settled = sa.text("status IN ('done', 'cancelled')")
    failed = sa.text("status = 'failed'")
    sqlite_due = sa.text("status = 'pending' AND parked = 0")  # as SQLAlchemy writes NOT parked there
    for name, columns, where in (
        ("due", (row.c.visible_after, row.c.id), due),
        ("namespace_due", (row.c.namespace, row.c.visible_after, row.c.id), due),
        ("claimed", (row.c.claimed_at, row.c.namespace), claimed),
        ("settled", (row.c.status, row.c.settled_at), settled),
        ("failed", (row.c.settled_at,), failed),
        ("parked", (row.c.id,), sa.text("parked")),
        ("workflow", (row.c.workflow_id, row.c.ordinal), sa.text("workflow_id IS NOT NULL")),
    ):
        sa.Index(
            f"{prefix}row_{name}", *columns, postgresql_where=where, sqlite_where=sqlite_due if where is due else where
        )

    namespace = sa.Table(
        f"{prefix}namespace",
        metadata,
        column("namespace", sa.Text, primary_key=True),
        column("placement", sa.Text, server_default=sa.text("'unplaced'")),
        column("nodes", sa.Text, server_default=sa.text("'[]'")),  # a JSON list
        column("max_in_flight", sa.Integer, null=True),
        column("state", sa.Text, server_default=sa.text("'active'")),
        column("created_at", Instant),
        column("last_seen_at", Instant, null=True),
    )
    sa.Table(
        f"{prefix}hold",
        metadata,
        column("scope", sa.Text, primary_key=True),
        column("value", sa.Text, primary_key=True),
        column("reason", sa.Text, null=True),
        column("created_at", Instant),
    )
    sa.Table(
        f"{prefix}worker",
        metadata,
        column("instance", sa.Uuid, primary_key=True),
        column("hostname", sa.Text),
        column("pool", sa.Text),
        column("node", sa.Text, null=True),
        column("namespaces", sa.Text),  # a JSON list, or "all"
        column("queues", sa.Text),  # a JSON list
        column("held", sa.Integer),
        column("started_at", Instant),
        column("last_seen_at", Instant),
    )
    sa.Table(
        f"{prefix}relay",
        metadata,
        column("instance", sa.Uuid, primary_key=True),
        column("hostname", sa.Text),
        column("loops", sa.Text),
        column("live_for", sa.Float),  # seconds after last_seen_at in which it counts as live
        column("started_at", Instant),
        column("last_seen_at", Instant),
        column("applied_at", Instant, null=True),  # every report delivered to it before this instant is applied
        column("marker", sa.Uuid, null=True),  # the last marker of its own that came back, and when
        column("marker_at", Instant, null=True),
    )
    sa.Table(
        f"{prefix}once",
        metadata,
        column("row_id", sa.BigInteger, primary_key=True, autoincrement=False),
        column("task_id", sa.Text, primary_key=True),
        column("created_at", Instant),
    )
    meta = sa.Table(
        f"{prefix}meta",
        metadata,
        column("id", sa.Integer, primary_key=True, autoincrement=False),  # one row: 1
        column("outbox_id", sa.Uuid),
        column("schema_version", sa.Integer),
        column("created_at", Instant),
    )
    sa.Table(
        f"{prefix}aside",
        metadata,
        sa.Column("id", identity, sa.Identity(), primary_key=True),
        column("row_id", sa.BigInteger, null=True),
        column("kind", sa.Text, null=True),
        column("body", sa.LargeBinary),
        column("reason", sa.Text),
        column("created_at", Instant),
        sqlite_autoincrement=True,
    )
    return metadata, row, namespace, meta
