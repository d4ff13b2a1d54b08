"""What is said about namespaces, workflows and tasks, and the workers that may be told apart by nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import after, given, literal, now
from outbox_relay.store.statements.parts import number, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables


def has_directive(tables: Tables) -> sa.ColumnElement[bool]:
    """Whether anything is said about a namespace that claims have to know. A deprecated one is claimed as ever."""
    namespace = tables.namespace
    return sa.or_(namespace.c.placement != literal("unplaced"), namespace.c.max_in_flight.is_not(None))


def governed(tables: Tables) -> sa.ScalarSelect[bool]:
    """Whether anything is said at all: what every look returns, so that nothing is asked where nothing is said."""
    spoken = sa.select(number(1)).select_from(tables.namespace).where(has_directive(tables)).exists()
    held = sa.select(number(1)).select_from(tables.hold).exists()
    return sa.select(sa.or_(spoken, held)).scalar_subquery()


@statement
def directives(tables: Tables) -> sa.CompoundSelect[Any]:
    """Everything that is said, of one instant, in one statement; ``kind`` tells what a row is.

    Workers count only where a namespace is placed; with them comes when some relay had last read all beacons.
    """
    namespace, hold, worker, relay = tables.namespace, tables.hold, tables.worker, tables.relay
    text, nothing = sa.Text(), sa.cast(sa.null(), sa.Text)
    no_number, never = sa.cast(sa.null(), sa.Integer), sa.cast(sa.null(), Instant())
    placed = sa.select(number(1)).where(namespace.c.placement != literal("unplaced")).exists()
    known = worker.c.last_seen_at > after(-sa.bindparam("known", type_=sa.Float()))
    parts = (
        sa.select(
            literal("namespace").label("kind"),
            namespace.c.namespace.label("name"),
            namespace.c.placement.label("word"),
            namespace.c.nodes.label("items"),
            namespace.c.max_in_flight.label("number"),
            never.label("at"),
        ).where(has_directive(tables)),
        sa.select(literal("hold"), hold.c.value, hold.c.scope, nothing, no_number, never),
        sa.select(
            literal("worker"), sa.cast(worker.c.instance, text), nothing, worker.c.queues, no_number,
            worker.c.last_seen_at,
        ).where(placed, known),
        sa.select(literal("read"), nothing, nothing, nothing, no_number, sa.func.max(relay.c.applied_at)),
        sa.select(literal("now"), nothing, nothing, nothing, no_number, now()),
    )  # fmt: skip
    return sa.union_all(*parts)


def named(dialect: str, name: str) -> sa.Select[str]:
    """Values that travel with the statement, as a subquery: read once, and looked up by hash however many there are."""
    return sa.select(given(dialect, name, value=sa.Text()).c.value)


def waits_for_node(row: sa.FromClause, dialect: str) -> sa.ColumnElement[bool]:
    """Whether a row's namespace is pinned and there is no node that the row may go to now."""
    wish = sa.case(
        (row.c.node.is_(None), sa.literal_column("':'", sa.Text) + row.c.task_queue),
        else_=sa.literal_column("'@'", sa.Text) + row.c.node,
    )
    opening = row.c.namespace + sa.literal_column("' '", sa.Text) + wish
    return sa.and_(row.c.namespace.in_(named(dialect, "pinned")), opening.not_in(named(dialect, "openings")))


def permitted(row: sa.FromClause, dialect: str) -> sa.ColumnElement[bool]:
    """Whether a row may be claimed as far as holds and placement go; the caller leaves closed namespaces out."""
    return sa.and_(
        sa.or_(row.c.workflow_id.is_(None), row.c.workflow_id.not_in(named(dialect, "workflows"))),
        row.c.task.not_in(named(dialect, "tasks")),
        sa.not_(waits_for_node(row, dialect)),
    )


def owned(row: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether a row is of a relay's own shards."""
    place = row.c.id % sa.bindparam("shards", type_=sa.BigInteger())
    first, last = (sa.bindparam(f"{which}_shard", type_=sa.BigInteger()) for which in ("first", "last"))
    return place.between(first, last)
