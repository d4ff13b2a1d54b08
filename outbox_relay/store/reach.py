"""Whether a database that cannot be used may come back by itself, or needs somebody to correct something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_relay.store.sql import POSTGRESQL, SQLITE

if TYPE_CHECKING:
    import sqlalchemy as sa

    from outbox_relay.errors import StoreAway

PING_TIMEOUT = 5  # seconds
#: Words of servers that can be reached, and of poolers before them, that have nothing to give just now.
_FULL = ("too many", "connection slots", "try again later", "cannot connect to server")
#: Words of the driver about servers that can be reached, though no connection to them is made.
_UNFIT = ("does not support SSL", "certificate")
_SQLITE_BUSY = ("locked", "busy")


def may_come_back(engine: sa.Engine, error: StoreAway) -> bool:
    """Tell whether waiting may help. It may not where the server refuses this user, password or database name.

    A failed connect has no SQLSTATE. So where it is not told apart by that, PostgreSQL is asked whether it takes
    connections at all, which libpq finds out in any language.
    """
    cause = error.__cause__
    original = getattr(cause, "orig", None)
    text = str(original)
    if engine.dialect.name == SQLITE:
        return any(word in text for word in _SQLITE_BUSY)
    if engine.dialect.name != POSTGRESQL or original is None or getattr(original, "sqlstate", None) is not None:
        return True  # there was a connection, or there is no free one in the pool
    if any(word in text for word in _UNFIT):
        return False
    return any(word in text for word in _FULL) or not _takes_connections(engine)


def _takes_connections(engine: sa.Engine) -> bool:
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - imported for PostgreSQL only
    from psycopg.pq import PGconn, Ping  # noqa: PLC0415

    words: dict[str, Any] = {**engine.dialect.create_connect_args(engine.url)[1]}
    words.pop("context", None)  # SQLAlchemy's own, for psycopg
    conninfo = make_conninfo(**{"connect_timeout": PING_TIMEOUT, **words})
    return Ping(PGconn.ping(conninfo.encode())) is Ping.OK
