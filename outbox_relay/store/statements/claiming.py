"""Look for due rows and claim them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import POSTGRESQL, after, given, literal, new_token, now
from outbox_relay.store.statements.directives import governed, named, owned, permitted
from outbox_relay.store.statements.parts import cleared, due, number, statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.store.schema import Tables


@dataclass(frozen=True, slots=True)
class Narrow:
    """What else a claim has to look at; nothing where nothing is said.

    ``guarded``: holds and placement, row by row. ``sharded``: the relay owns a part of the rows only.
    """

    guarded: bool = False
    sharded: bool = False

    def to(self, row: sa.FromClause, dialect: str) -> list[sa.ColumnElement[bool]]:
        """The conditions on a row."""
        conditions = [owned(row)] if self.sharded else []
        return [*conditions, permitted(row, dialect)] if self.guarded else conditions


WIDE = Narrow()


def _size(row: sa.FromClause) -> sa.ColumnElement[int]:
    """What a row will weigh in the relay's memory; the lengths are read without fetching the values."""
    return sa.func.length(row.c.body) + sa.func.length(row.c.headers) + sa.func.length(row.c.properties)


_MESSAGE = ("task", "task_id", "task_queue", "exchange", "routing_key", "body", "content_type", "content_encoding")
CLAIMED_COLUMNS = (
    *("id", "claim_token", "namespace", "node", *_MESSAGE, "headers", "properties"),
    *("attempt", "retries", "settle_on", "visible_after"),
)  # :mod:`outbox_relay.store.claimed` reads them, and whether the row has expired, by their places
LOOK_COLUMNS = 4  # that :func:`claim_all` returns before them


def _take(tables: Tables, fits: sa.FromClause) -> sa.Update:
    row = tables.row
    return (
        sa.update(row)
        .where(row.c.id == fits.c.id)
        .values(
            {
                **cleared(),
                "status": literal("claimed"),
                "claim_token": new_token(),
                "claimed_at": now(),
                "claimed_by": sa.bindparam("by", type_=sa.Uuid()),
                "lease_until": after(sa.bindparam("lease", type_=sa.Float())),
            }
        )
        .returning(
            *(row.c[name] for name in CLAIMED_COLUMNS),
            sa.func.coalesce(row.c.expires_at <= now(), sa.false()).label("expired"),
        )
    )


def _within_bytes(found: sa.FromClause, *order: sa.ColumnElement[Any]) -> sa.CTE:
    """As many of the found rows as fit into memory together, and always the first: a running sum of their sizes."""
    before = (sa.func.sum(found.c.size).over(order_by=order, rows=(None, 0)) - found.c.size).label("before")
    measured = sa.select(found.c.id, before).subquery("measured")
    return (
        sa.select(measured.c.id).where(measured.c.before < sa.bindparam("max_bytes", type_=sa.BigInteger())).cte("fits")
    )


@statement
def claim_all(tables: Tables, narrow: Narrow = WIDE) -> sa.Select[Any]:
    """PostgreSQL: claim what is due while one namespace is registered, and say how many there are.

    One statement does it, because the update is a part of a select whose first columns come back even when nothing
    is due: the instant of the look, for the watermark, the number of namespaces, whether anything is said about any
    of them, and the number of due rows that were seen. With more than one namespace it claims nothing, since it could
    not be fair, nor where anything is said. SKIP LOCKED lets relays claim side by side.
    """
    row, namespace = tables.row, tables.namespace
    registered = sa.select(sa.func.count()).select_from(namespace).scalar_subquery()
    limit = sa.bindparam("limit", type_=sa.BigInteger())
    found = (
        sa.select(row.c.id, row.c.visible_after, _size(row).label("size"))
        .where(due(tables), row.c.visible_after <= now(), row.c.visible_after >= sa.bindparam("since", type_=Instant()))
        .where(*narrow.to(row, POSTGRESQL), registered <= number(1), sa.not_(governed(tables)))
        .order_by(row.c.visible_after, row.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("found")
    )
    claimed = _take(tables, _within_bytes(found, found.c.visible_after, found.c.id)).cte("claimed")
    seen = sa.select(sa.func.count()).select_from(found).scalar_subquery()
    look = sa.select(
        now().label("now"), registered.label("namespaces"), governed(tables).label("governed"), seen.label("seen")
    ).subquery("look")
    return sa.select(look, claimed).select_from(look.outerjoin(claimed, sa.true()))


COUNTED_PARTS = 10


def _with_strangers(tables: Tables, dialect: str) -> sa.Subquery:
    names, strangers = tables.namespace.c.namespace, given(dialect, "strangers", value=sa.Text())
    others = sa.select(strangers.c.value.label("namespace")).where(strangers.c.value.not_in(sa.select(names)))
    return sa.union_all(sa.select(names), others).subquery("registry")


def _active(registry: sa.FromClause, dialect: str, narrow: Narrow, rows_of: Callable[..., sa.Select[Any]]) -> sa.CTE:
    """At most ``limit`` namespaces with due rows, in the order of their turn, each with the instant to look from.

    That is its own mark, or the one of all that have none. Both are asked apart, since a join would compare each
    namespace with each mark; and the latter in two parts, each in the order of the registry's key, so that
    no more of them are asked than may have a turn. What asks is a subquery and no EXISTS, which would become a join.
    """
    limit, turn = sa.bindparam("limit", type_=sa.BigInteger()), sa.bindparam("turn", type_=sa.Text())
    marks = given(dialect, "marks", namespace=sa.Text(), since=Instant())
    floor = sa.bindparam("since", type_=Instant())
    unmarked = sa.select(registry.c.namespace, floor.label("since")).where(
        registry.c.namespace.not_in(sa.select(marks.c.namespace))
    )
    marked = sa.select(marks.c.namespace, marks.c.since)
    parts = {
        "after": unmarked.where(registry.c.namespace > turn),
        "upto": unmarked.where(registry.c.namespace <= turn),
        "marked": marked,
    }
    found = []
    for name, part in parts.items():
        known = part.subquery(name)
        open_ = [known.c.namespace.not_in(named(dialect, "closed"))] if narrow.guarded else []
        first = rows_of(known).limit(number(1)).correlate(known).scalar_subquery()
        due_ones = sa.select(known).where(*open_, first.is_not(None))
        found.append(sa.select(due_ones.order_by(known.c.namespace).limit(limit).subquery(f"{name}_due")))
    every = sa.union_all(*found).subquery("found")
    return sa.select(every).order_by(every.c.namespace <= turn, every.c.namespace).limit(limit).cte("active")


@statement
def due_namespaces(tables: Tables, dialect: str, narrow: Narrow = WIDE, strangers: bool = False) -> sa.Select[Any]:
    """Which namespaces have due rows, in the order of their turn, and how many (counted only as far as it matters).

    It asks the registry, not the rows: one probe of an index a namespace, where DISTINCT would read every due row.
    Of at most ``limit`` namespaces, each is counted up to ten times its part, so that the count reads no more
    than about ten batches. Like :func:`claim_all` it gives one row even when nothing is due. A guarded look leaves
    out the namespaces that are ``closed`` or have no room, and every row that may not be claimed. Namespaces that only
    somebody else's open transaction knows are given as ``strangers``.
    """
    row, namespace = tables.row, tables.namespace
    registry: sa.FromClause = _with_strangers(tables, dialect) if strangers else namespace
    limit = sa.bindparam("limit", type_=sa.BigInteger())
    turn = sa.bindparam("turn", type_=sa.Text())

    def rows_of(source: sa.FromClause) -> sa.Select[Any]:
        """In the order of the due index of the namespace, so that no plan goes by another one."""
        return (
            sa.select(number(1).label("one"))
            .where(
                due(tables),
                row.c.namespace == source.c.namespace,
                row.c.visible_after <= now(),
                row.c.visible_after >= source.c.since,
                *narrow.to(row, dialect),
            )
            .order_by(row.c.visible_after, row.c.id)
        )

    active = _active(registry, dialect, narrow, rows_of)
    actives = sa.func.count(type_=sa.BigInteger())
    part = (limit + actives - number(1)) // sa.func.nullif(actives, number(0))  # rounded up
    cap = sa.select(part * number(COUNTED_PARTS)).select_from(active).scalar_subquery()
    some = rows_of(active).correlate(active).limit(cap).subquery("some")
    rows = sa.select(sa.func.count()).select_from(some).correlate(active).scalar_subquery()
    registered = sa.select(sa.func.count()).select_from(namespace).scalar_subquery()
    look = sa.select(now().label("now"), registered.label("namespaces"), governed(tables).label("governed")).subquery(
        "look"
    )
    counted = sa.select(active.c.namespace, rows.label("rows")).subquery("counted")
    return (
        sa.select(look, counted)
        .select_from(look.outerjoin(counted, sa.true()))
        .order_by(counted.c.namespace <= turn, counted.c.namespace)
    )


@statement
def claim_shares(tables: Tables, dialect: str, narrow: Narrow = WIDE) -> sa.Update:
    """Claim, of each namespace in the plan, the rows that are its share; oldest first within each.

    The byte limit goes round the namespaces too: first rows first. PostgreSQL locks, in a LATERAL, exactly the rows
    that it takes; SQLite, which has no LATERAL and nobody to lock out, numbers the head of each namespace.
    """
    row = tables.row
    plan = given(dialect, "plan", namespace=sa.Text(), share=sa.BigInteger(), since=Instant())
    head = sa.select(row.c.id, row.c.namespace, row.c.visible_after, _size(row).label("size")).where(
        due(tables),
        row.c.namespace == plan.c.namespace,
        row.c.visible_after <= now(),
        row.c.visible_after >= plan.c.since,
        *(narrow.to(row, dialect) if dialect == POSTGRESQL else []),
    )
    if dialect == POSTGRESQL:
        taken = (
            head.order_by(row.c.visible_after, row.c.id)
            .limit(plan.c.share)
            .with_for_update(skip_locked=True, of=row)
            .lateral("taken")
        )
        found = sa.select(taken).select_from(plan.join(taken, sa.true())).cte("found")
    else:
        other = row.alias("other")
        first = (
            sa.select(other.c.id)
            .where(
                other.c.status == literal("pending"),
                sa.not_(other.c.parked),
                other.c.namespace == plan.c.namespace,
                other.c.visible_after <= now(),
                other.c.visible_after >= plan.c.since,
                *narrow.to(other, dialect),
            )
            .order_by(other.c.visible_after, other.c.id)
            .limit(sa.bindparam("most", type_=sa.BigInteger()))
            .correlate(plan)
        )
        place = sa.func.row_number().over(partition_by=row.c.namespace, order_by=(row.c.visible_after, row.c.id))
        numbered = (
            sa.select(
                row.c.id,
                row.c.namespace,
                row.c.visible_after,
                _size(row).label("size"),
                plan.c.share,
                place.label("place"),
            )
            .select_from(plan.join(row, row.c.id.in_(first)))
            .subquery("numbered")
        )
        found = sa.select(numbered).where(numbered.c.place <= numbered.c.share).cte("found")
    turn = sa.func.row_number().over(partition_by=found.c.namespace, order_by=(found.c.visible_after, found.c.id))
    rounds = sa.select(found.c.id, found.c.visible_after, found.c.size, turn.label("turn")).subquery("rounds")
    return _take(tables, _within_bytes(rounds, rounds.c.turn, rounds.c.visible_after, rounds.c.id))


@statement
def claimed_rows(tables: Tables, narrow: Narrow = WIDE) -> sa.Select[Any]:
    """How many rows of each namespace are claimed, all in one look, from an instant before which no claim is open."""
    row = tables.row
    of_each = (
        sa.select(
            row.c.namespace,
            sa.func.count().label("rows"),
            sa.type_coerce(sa.func.min(row.c.claimed_at), Instant()).label("oldest"),
        )
        .where(row.c.status == literal("claimed"), row.c.claimed_at >= sa.bindparam("since", type_=Instant()))
        .where(*([owned(row)] if narrow.sharded else []))
        .group_by(row.c.namespace)
        .subquery("of_each")
    )
    look = sa.select(now().label("now")).subquery("look")
    return sa.select(look, of_each).select_from(look.outerjoin(of_each, sa.true()))


@statement
def lock_quotas(tables: Tables) -> sa.Select[int]:
    """PostgreSQL: one relay at a time counts and claims where quotas hold, each in a statement after this one.

    A count in the same statement would see what there was before it waited. One lock for all namespaces cannot make a
    deadlock, and is not written to rows that change anyway.
    """
    meta = tables.meta
    return sa.select(meta.c.id).where(meta.c.id == number(1)).with_for_update()
