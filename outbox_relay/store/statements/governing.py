"""What operators say about namespaces, workflows and tasks: the registry of namespaces, and the holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from outbox_relay.core.lifecycle import Status
from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import POSTGRESQL, after, clock, given, literal, now
from outbox_relay.store.statements.parking import parked
from outbox_relay.store.statements.parts import due, number, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables

SETTABLE = ("placement", "nodes", "max_in_flight", "state")
"""The columns of a namespace that operators set."""

SAMPLE = 10


def _name() -> sa.BindParameter[str]:
    return sa.bindparam("name", type_=sa.Text())


# -- namespaces ------------------------------------------------------------------------------------------------------


@statement
def namespaces(tables: Tables, one: bool = False) -> sa.Select[Any]:
    """Every namespace (or the ``one`` that is named) with what it has in flight: a scan of each partial index at most.

    Rows that have ended are not counted, so that this stays quick however many are kept.
    """
    row, namespace, hold = tables.row, tables.namespace, tables.hold

    def grouped(name: str, *where: Any, oldest: bool = False) -> sa.Subquery:
        extra = [sa.func.min(row.c.visible_after).label("oldest")] if oldest else []
        query = sa.select(row.c.namespace, sa.func.count().label("rows"), *extra).where(*where)
        return query.group_by(row.c.namespace).subquery(name)

    open_ = grouped("open_rows", due(tables), row.c.visible_after <= now(), oldest=True)
    claimed = grouped("claimed_rows", row.c.status == literal("claimed"))
    kept = grouped("parked_rows", parked())
    source: sa.FromClause = namespace
    for part in (open_, claimed, kept):
        source = source.outerjoin(part, part.c.namespace == namespace.c.namespace)
    is_held = sa.select(number(1)).where(hold.c.scope == literal("namespace"), hold.c.value == namespace.c.namespace)
    query = sa.select(
        namespace,
        sa.func.coalesce(claimed.c.rows, number(0)).label("in_flight"),
        sa.func.coalesce(open_.c.rows, number(0)).label("due"),
        sa.func.coalesce(kept.c.rows, number(0)).label("parked"),
        sa.type_coerce(open_.c.oldest, Instant()).label("oldest_due_at"),
        is_held.exists().label("held"),
    ).select_from(source)
    return query.where(namespace.c.namespace == _name()) if one else query.order_by(namespace.c.namespace)


@statement
def any_limit(tables: Tables) -> sa.Select[Any]:
    """A namespace that has a quota of its own or is pinned, if there is one."""
    namespace = tables.namespace
    limited = sa.or_(namespace.c.max_in_flight >= number(0), namespace.c.placement == literal("pinned"))
    return sa.select(namespace.c.namespace).where(limited).limit(number(1))


@statement
def put_namespace(tables: Tables, dialect: str, columns: frozenset[str]) -> sa.Insert:
    """Set the named columns of a namespace, which is made where it is missing."""
    namespace = tables.namespace
    given_ = {name: sa.bindparam(name, type_=namespace.c[name].type) for name in sorted(columns)}
    insert: Any = (postgresql if dialect == POSTGRESQL else sqlite).insert(namespace)
    insert = insert.values(namespace=_name(), created_at=now(), **given_)
    if not columns:
        made: sa.Insert = insert.on_conflict_do_nothing()
        return made
    changes = {name: insert.excluded[name] for name in given_}
    upsert: sa.Insert = insert.on_conflict_do_update(index_elements=[namespace.c.namespace], set_=changes)
    return upsert


@statement
def change_namespace(tables: Tables, columns: frozenset[str]) -> sa.Update:
    """Set the named columns of a namespace that is there."""
    namespace = tables.namespace
    changes = {name: sa.bindparam(name, type_=namespace.c[name].type) for name in sorted(columns)}
    return sa.update(namespace).where(namespace.c.namespace == _name()).values(changes)


@statement
def namespace_names(tables: Tables) -> sa.Select[Any]:
    """The names of all namespaces."""
    return sa.select(tables.namespace.c.namespace).order_by(tables.namespace.c.namespace)


# -- namespaces that nobody registered -------------------------------------------------------------------------------


def registering(tables: Tables) -> Any:
    """PostgreSQL: register those of the ``fresh`` names that nobody has, or is about to.

    A transaction that registers a name keeps others from it until it ends, which a shop's transaction may do late; and
    two that register two names in another order would wait for each other. So a name that somebody else is registering
    is left to him: an advisory lock tells. Where he rolls back, a relay finds the rows (:func:`stranger_names`).
    """
    namespace = tables.namespace
    other = namespace.alias("known")
    names = given(POSTGRESQL, "fresh", namespace=sa.Text())
    known = sa.select(number(1)).where(other.c.namespace == names.c.namespace).exists()
    lock = sa.func.hashtextextended(literal(f"{namespace.fullname}:") + names.c.namespace, number(0))
    free = sa.case((known, sa.false()), else_=sa.func.pg_try_advisory_xact_lock(lock))
    source = sa.select(names.c.namespace, clock()).where(free).order_by(names.c.namespace)
    return postgresql.insert(namespace).from_select(["namespace", "created_at"], source).on_conflict_do_nothing()


@statement
def register_names(tables: Tables, dialect: str) -> sa.Insert:
    """Register namespaces, in a transaction of its own, and return those that are new."""
    if dialect == POSTGRESQL:
        insert = registering(tables)
    else:
        names = given(dialect, "fresh", namespace=sa.Text())
        source = sa.select(names.c.namespace, clock()).where(sa.true())
        insert = sqlite.insert(tables.namespace).from_select(["namespace", "created_at"], source)
        insert = insert.on_conflict_do_nothing()
    made: sa.Insert = insert.returning(tables.namespace.c.namespace)
    return made


@statement
def stranger_names(tables: Tables) -> sa.Select[Any]:
    """Namespaces of rows that may become due, and that are not registered.

    It steps from one namespace to the next through the index, so that it reads one entry for each and not one for each
    row.
    """
    row, namespace = tables.row, tables.namespace
    first = sa.select(sa.func.min(row.c.namespace).label("name")).where(due(tables))
    names = first.cte("names", recursive=True)
    following = sa.select(sa.func.min(row.c.namespace)).where(due(tables), row.c.namespace > names.c.name)
    names = names.union_all(sa.select(following.scalar_subquery()).where(names.c.name.is_not(None)))
    known = sa.select(number(1)).where(namespace.c.namespace == names.c.name)
    return sa.select(names.c.name).where(names.c.name.is_not(None), sa.not_(known.exists())).order_by(names.c.name)


@statement
def seen(tables: Tables, dialect: str) -> sa.Update:
    """Namespaces had rows to run just now: at most one write a namespace in ``every`` seconds."""
    namespace = tables.namespace
    names = given(dialect, "names", namespace=sa.Text())
    stale = namespace.c.last_seen_at < after(-sa.bindparam("every", type_=sa.Float()))
    return (
        sa.update(namespace)
        .where(namespace.c.namespace == names.c.namespace, sa.or_(namespace.c.last_seen_at.is_(None), stale))
        .values(last_seen_at=now())
    )


# -- holds -----------------------------------------------------------------------------------------------------------


def _hold_binds() -> tuple[sa.BindParameter[str], sa.BindParameter[str]]:
    return sa.bindparam("scope", type_=sa.Text()), sa.bindparam("value", type_=sa.Text())


@statement
def put_hold(tables: Tables, dialect: str) -> sa.Insert:
    """Hold something; a hold that is there keeps its instant, and its reason where no new one is given."""
    hold = tables.hold
    scope, value = _hold_binds()
    reason = sa.bindparam("reason", type_=sa.Text())
    insert: Any = (postgresql if dialect == POSTGRESQL else sqlite).insert(hold)
    insert = insert.values(scope=scope, value=value, reason=reason, created_at=now())
    changes = {"reason": sa.func.coalesce(insert.excluded.reason, hold.c.reason)}
    upsert: sa.Insert = insert.on_conflict_do_update(index_elements=[hold.c.scope, hold.c.value], set_=changes)
    return upsert


@statement
def drop_hold(tables: Tables) -> sa.Delete:
    """End a hold. It waits for whoever parks rows because of it, and has read it FOR SHARE."""
    hold = tables.hold
    scope, value = _hold_binds()
    return sa.delete(hold).where(hold.c.scope == scope, hold.c.value == value)


@statement
def holds(tables: Tables) -> sa.Select[Any]:
    """All holds, the oldest first, and how many rows of what they are on are parked: each kind reads those once."""
    row, hold = tables.row, tables.hold
    parts = []
    for scope, column in (("workflow", row.c.workflow_id), ("namespace", row.c.namespace), ("task", row.c.task)):
        rows = (
            sa.select(hold.c.value, sa.func.count().label("rows"))
            .select_from(hold.join(row, column == hold.c.value))
            .where(hold.c.scope == literal(scope), parked())
            .group_by(hold.c.value)
            .subquery(f"{scope}_rows")
        )
        parts.append(sa.select(literal(scope).label("scope"), rows.c.value, rows.c.rows))
    counted = sa.union_all(*parts).subquery("counted")
    same = sa.and_(counted.c.scope == hold.c.scope, counted.c.value == hold.c.value)
    return (
        sa.select(hold, sa.func.coalesce(counted.c.rows, number(0)).label("parked"))
        .select_from(hold.outerjoin(counted, same))
        .order_by(hold.c.created_at, hold.c.scope, hold.c.value)
    )


@statement
def holds_on(tables: Tables) -> sa.Select[Any]:
    """The holds that keep a row of ``namespace``, ``workflow`` and ``task``; the oldest first."""
    hold = tables.hold
    mine = [
        sa.and_(hold.c.scope == literal(scope), hold.c.value == sa.bindparam(scope, type_=sa.Text()))
        for scope in ("workflow", "namespace", "task")
    ]
    return sa.select(hold, number(0).label("parked")).where(sa.or_(*mine)).order_by(hold.c.created_at)


# -- workflows -------------------------------------------------------------------------------------------------------


@statement
def workflow(tables: Tables) -> sa.Select[Any]:
    """How many rows of a workflow are in each state, when the first was staged and when the last one ended."""
    row, hold = tables.row, tables.hold
    counts: list[Any] = [sa.func.count().filter(row.c.status == literal(one.value)).label(one.value) for one in Status]
    pending = row.c.status == literal("pending")
    is_held = sa.select(number(1)).where(hold.c.scope == literal("workflow"), hold.c.value == _name())
    instants = {
        "created_at": sa.func.min(row.c.created_at),
        "oldest_pending_at": sa.func.min(sa.case((pending, row.c.created_at))),
        "last_settled_at": sa.func.max(row.c.settled_at),
    }
    return sa.select(
        *counts,
        sa.func.count().filter(sa.and_(pending, row.c.parked)).label("parked"),
        *(sa.type_coerce(value, Instant()).label(name) for name, value in instants.items()),
        is_held.exists().label("held"),
    ).where(row.c.workflow_id == _name())


@statement
def workflow_runs(tables: Tables) -> sa.Select[Any]:
    """The latest runs of a workflow, by name, a few."""
    row = tables.row
    first = sa.func.max(row.c.id)
    return (
        sa.select(row.c.run_id)
        .where(row.c.workflow_id == _name(), row.c.run_id.is_not(None))
        .group_by(row.c.run_id)
        .order_by(first.desc())
        .limit(SAMPLE)
    )


@statement
def workflow_failed(tables: Tables) -> sa.Select[Any]:
    """The first failed rows of a workflow, a few."""
    row = tables.row
    return (
        sa.select(row.c.id)
        .where(row.c.workflow_id == _name(), row.c.status == literal("failed"))
        .order_by(row.c.ordinal, row.c.id)
        .limit(SAMPLE)
    )


# -- one row's place ---------------------------------------------------------------------------------------------------


@statement
def place_in_line(tables: Tables) -> sa.Select[Any]:
    """How many due rows of its namespace come before a row (up to ``most``), and how many others have due rows."""
    row, namespace = tables.row, tables.namespace
    mine = sa.bindparam("namespace", type_=sa.Text())
    at, id_ = sa.bindparam("at", type_=Instant()), sa.bindparam("id", type_=sa.BigInteger())
    before = sa.or_(row.c.visible_after < at, sa.and_(row.c.visible_after == at, row.c.id < id_))
    some = (
        sa.select(number(1).label("one"))
        .where(due(tables), row.c.namespace == mine, row.c.visible_after <= at, before)
        .limit(sa.bindparam("most", type_=sa.BigInteger()))
        .subquery("some")
    )
    is_due = sa.select(number(1)).where(
        due(tables), row.c.namespace == namespace.c.namespace, row.c.visible_after <= now()
    )
    others = sa.select(sa.func.count()).select_from(namespace).where(namespace.c.namespace != mine, is_due.exists())
    return sa.select(
        sa.select(sa.func.count()).select_from(some).scalar_subquery().label("ahead"),
        others.scalar_subquery().label("others"),
    )
