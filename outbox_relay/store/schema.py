"""The outbox's tables, as SQLAlchemy Core sees them; the migrations make the same ones.

A shop that runs Alembic itself can include the metadata of :func:`build` in its own revisions instead of
``outbox migrate``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.defaults import PLAIN

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

SCHEMA_VERSION = 2
# Room in each page for a second copy of its rows, so that a batch is updated in place (no option in SQLAlchemy 2.0).
_ROOM = sa.DDL("ALTER TABLE %(fullname)s SET (fillfactor = 50)")  # type: ignore[no-untyped-call]  # it is


class Instant(sa.types.TypeDecorator[datetime]):
    """An instant: an aware ``datetime`` in Python, ``timestamptz`` on PostgreSQL, UTC text on SQLite."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("an instant needs a time zone")
        value = value.astimezone(timezone.utc)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


@dataclass(frozen=True, slots=True, eq=False)  # so that statements are found by their tables quickly
class Tables:
    """The tables of one outbox."""

    metadata: sa.MetaData
    prefix: str
    row: sa.Table
    namespace: sa.Table
    hold: sa.Table
    worker: sa.Table
    relay: sa.Table
    once: sa.Table
    meta: sa.Table
    aside: sa.Table


def build(prefix: str = "outbox_", schema: str | None = None) -> Tables:
    """Return the tables of an outbox whose names start with ``prefix``, in ``schema`` (None: the connection's own)."""
    metadata = sa.MetaData(schema=schema)

    def column(name: str, type_: Any, *, null: bool = False, **options: Any) -> sa.Column[Any]:
        return sa.Column(name, type_, nullable=null, **options)

    def plain(name: str, type_: Any) -> sa.Column[Any]:
        """A column that plain SQL may leave out."""
        return column(name, type_, server_default=PLAIN[name])

    identity = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    row = sa.Table(
        f"{prefix}row",
        metadata,
        sa.Column("id", identity, sa.Identity(), primary_key=True),
        plain("namespace", sa.Text),
        plain("dispatch_key", sa.Text),
        plain("content_hash", sa.LargeBinary),
        column("workflow_id", sa.Text, null=True),
        column("run_id", sa.Text, null=True),
        column("ordinal", sa.BigInteger, null=True),
        plain("task_queue", sa.Text),
        column("node", sa.Text, null=True),
        plain("exchange", sa.Text),
        plain("routing_key", sa.Text),
        column("task", sa.Text),
        plain("task_id", sa.Text),
        plain("body", sa.LargeBinary),
        plain("content_type", sa.Text),
        plain("content_encoding", sa.Text),
        plain("headers", sa.LargeBinary),
        plain("properties", sa.LargeBinary),
        column("status", sa.Text, server_default=sa.text("'pending'")),
        column("parked", sa.Boolean, server_default=sa.false()),
        column("attempt", sa.Integer, server_default=sa.text("0")),
        column("failures", sa.Integer, server_default=sa.text("0")),
        column("retries", sa.Integer, server_default=sa.text("0")),
        column("max_attempts", sa.Integer, null=True),
        column("rearms", sa.Integer, server_default=sa.text("0")),
        column("vanished", sa.Integer, server_default=sa.text("0")),  # re-arms in a row of a task known to run
        column("silent", sa.Integer, server_default=sa.text("0")),  # re-arms of a message that nobody reported on
        plain("visible_after", Instant),
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
        plain("created_at", Instant),
        column("settled_at", Instant, null=True),
        column("args", sa.Text, null=True),  # JSON, of a row that plain SQL inserted, until a relay makes its message
        column("kwargs", sa.Text, null=True),
        sa.UniqueConstraint("namespace", "dispatch_key", name=f"{prefix}row_dispatch_key"),
        sqlite_autoincrement=True,
    )
    sa.event.listen(row, "after_create", _ROOM.execute_if(dialect="postgresql"))
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
    hold = sa.Table(
        f"{prefix}hold",
        metadata,
        column("scope", sa.Text, primary_key=True),
        column("value", sa.Text, primary_key=True),
        column("reason", sa.Text, null=True),
        column("created_at", Instant),
    )
    worker = sa.Table(
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
    relay = sa.Table(
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
    once = sa.Table(
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
    aside = sa.Table(
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
    return Tables(metadata, prefix, row, namespace, hold, worker, relay, once, meta, aside)
