"""The registers of relays and workers, and what a worker's beacon does to the rows that it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from outbox_relay.store.schema import Instant
from outbox_relay.store.sql import POSTGRESQL, after, given, latest, literal, now
from outbox_relay.store.statements.parts import number, statement

if TYPE_CHECKING:
    from outbox_relay.store.schema import Tables


def _upsert(
    table: sa.Table, dialect: str, fixed: dict[str, Any], changing: dict[str, Any], kept: dict[str, Any]
) -> sa.Insert:
    """Insert a process's row, or bring it up to date.

    ``fixed`` columns stay as the first insert wrote them; ``kept`` ones change where there is a new value.
    """
    insert: Any = (postgresql if dialect == POSTGRESQL else sqlite).insert(table)
    first = {name: sa.func.coalesce(value, number(0)) if name == "held" else value for name, value in kept.items()}
    insert = insert.values({**fixed, **changing, **first})
    changes = {name: insert.excluded[name] for name in changing}
    changes |= {name: sa.func.coalesce(value, table.c[name]) for name, value in kept.items()}
    upsert: sa.Insert = insert.on_conflict_do_update(index_elements=[table.c.instance], set_=changes)
    return upsert


@statement
def sign_relay(tables: Tables, dialect: str) -> sa.Insert:
    """A relay says that it lives, and perhaps up to when it has applied all that it had received."""
    relay = tables.relay
    changing = {name: sa.bindparam(name, type_=relay.c[name].type) for name in ("hostname", "loops", "live_for")}
    return _upsert(
        relay,
        dialect,
        {"instance": sa.bindparam("instance", type_=sa.Uuid()), "started_at": now()},
        {**changing, "last_seen_at": now()},
        {"applied_at": sa.bindparam("applied_at", type_=Instant())},
    )


@statement
def marker_back(tables: Tables) -> sa.Update:
    """A relay's marker has come back through the settlement queue."""
    relay = tables.relay
    return (
        sa.update(relay)
        .where(relay.c.instance == sa.bindparam("owner", type_=sa.Uuid()))
        .values(marker=sa.bindparam("id", type_=sa.Uuid()), marker_at=now())
    )


@statement
def relays(tables: Tables) -> sa.Select[Any]:
    """All relays, the latest sign first; ``live`` by the database's clock."""
    relay = tables.relay
    live = (after(relay.c.live_for, relay.c.last_seen_at) > now()).label("live")
    return sa.select(relay, live).order_by(relay.c.last_seen_at.desc())


@statement
def forget_relay(tables: Tables) -> sa.Delete:
    """A relay that stops takes its name off the register."""
    return sa.delete(tables.relay).where(tables.relay.c.instance == sa.bindparam("instance", type_=sa.Uuid()))


@statement
def forget_worker(tables: Tables) -> sa.Delete:
    """A worker that leaves in good order takes its name off the register: no row is in its hands."""
    return sa.delete(tables.worker).where(tables.worker.c.instance == sa.bindparam("instance", type_=sa.Uuid()))


@statement
def sign_worker(tables: Tables, dialect: str) -> sa.Insert:
    """A worker's beacon; ``held`` is NULL in one that does not count the rows in its hands."""
    worker = tables.worker
    columns = ("hostname", "pool", "node", "namespaces", "queues")
    return _upsert(
        worker,
        dialect,
        {
            "instance": sa.bindparam("instance", type_=sa.Uuid()),
            "started_at": after(-sa.bindparam("age", type_=sa.Float())),
        },
        {**{name: sa.bindparam(name, type_=worker.c[name].type) for name in columns}, "last_seen_at": now()},
        {"held": sa.bindparam("held", type_=sa.Integer())},
    )


@statement
def workers(tables: Tables) -> sa.Select[Any]:
    """All workers, the latest sign first; ``live``: seen within ``ttl`` seconds."""
    worker = tables.worker
    live = (after(sa.bindparam("ttl", type_=sa.Float()), worker.c.last_seen_at) > now()).label("live")
    return sa.select(worker, live).order_by(worker.c.last_seen_at.desc())


@statement
def forget_processes(tables: Tables, which: str) -> sa.Delete:
    """Relays or workers that have not been seen for ``age`` seconds: each restart leaves one behind."""
    table = tables.relay if which == "relay" else tables.worker
    return sa.delete(table).where(table.c.last_seen_at < after(-sa.bindparam("age", type_=sa.Float())))


@statement
def hold(tables: Tables, dialect: str) -> sa.Update:
    """Rows in a worker's hands: claimed, also where they were re-armed meanwhile, as long as their token is the last.

    ``exact``: only the worker has the message, so that the lease is the run lease from now, and may become shorter;
    else it never does. None of the columns is indexed, so the row stays where it is in the indexes.
    """
    row = tables.row
    held = given(
        dialect, "held", id=sa.BigInteger(), token=sa.Uuid(), exact=sa.Integer(), running=sa.Integer(), age=sa.Float()
    )
    columns = (held.c.exact, held.c.running, held.c.age)
    query = (
        sa.select(row.c.id, *columns)
        .select_from(row.join(held, sa.and_(row.c.id == held.c.id, row.c.claim_token == held.c.token)))
        .order_by(row.c.id)
        .with_for_update(of=row)
    )
    locked: sa.FromClause = query.cte("locked") if dialect == POSTGRESQL else query.subquery("locked")
    worker = sa.bindparam("worker", type_=sa.Text())
    same = sa.func.coalesce(row.c.worker == worker, sa.false())
    began = after(-locked.c.age)
    run = after(sa.bindparam("run_lease", type_=sa.Float()))
    return (
        sa.update(row)
        .where(row.c.id == locked.c.id)
        .values(
            status=literal("claimed"),
            parked=sa.false(),
            silent=number(0),
            worker=worker,
            started_at=sa.case(
                (sa.and_(same, row.c.started_at.is_not(None)), row.c.started_at),
                (locked.c.running == number(1), began),
                else_=sa.null(),
            ),
            lease_until=sa.case(
                (locked.c.exact == number(1), run), else_=latest(sa.func.coalesce(row.c.lease_until, now()), run)
            ),
        )
    )
