"""What ``check`` has to say about the engine that stages: is its database the one that the relay reads?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox_relay.cli.advice import Finding, fault, fine, warning
from outbox_relay.cli.session import command, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from outbox_relay.outbox import Outbox

SAME = "set outbox_database_url to the database of the session that Outbox(app, session=…) is given, or the other way"


def staging(outbox: Outbox) -> Iterator[Finding]:
    """Compare the database of the registered session with the outbox's own; nothing is said where none is registered.

    Not their addresses are compared, which may be two of one server, but the ids of the outboxes in them.
    """
    if outbox.session is None:
        return
    try:
        engine = _engine_of(outbox.session(), outbox)
    except Exception as error:  # noqa: BLE001 - a shop's own function may raise whatever it likes
        said = f"{type(error).__name__}: {first_line(error)}"
        yield warning(
            "staging",
            f"the registered session cannot be had here ({said}), so its database is not compared with the relay's",
            "run check where there is a current session, such as in an application context",
        )
        return
    if engine is None:
        return
    where = engine.url.render_as_string(hide_password=True)
    if engine.dialect.is_async:
        yield from _addresses(outbox, engine, where)
        return
    try:
        found = _outbox_in(engine, outbox)
    except sa.exc.SQLAlchemyError as error:
        said = first_line(getattr(error, "orig", None) or error)
        yield fault(
            "staging", f"the registered session's database, {where}, has no outbox that can be read: {said}", SAME
        )
        return
    if found != outbox.store.outbox_id():
        yield fault("staging", f"what is staged goes to {where}, which is another outbox than the relay reads", SAME)
    else:
        yield fine("staging", f"the registered session stages into the same outbox ({where})")


def _engine_of(given: Any, outbox: Outbox) -> sa.Engine | None:
    """The engine that a session or connection would stage on; None where it is none of SQLAlchemy's."""
    given = getattr(given, "sync_session", None) or getattr(given, "sync_connection", None) or given
    if isinstance(given, Session):
        return given.get_bind(clause=outbox.tables.row).engine
    return given.engine if isinstance(given, sa.Connection) else None


def _outbox_in(engine: sa.Engine, outbox: Outbox) -> UUID | None:
    with engine.connect() as connection:
        found: UUID | None = connection.execute(sa.select(outbox.tables.meta.c.outbox_id)).scalar()
        return found


def _addresses(outbox: Outbox, engine: sa.Engine, where: str) -> Iterator[Finding]:
    """An async engine is not asked from here: only where it goes to is compared."""
    theirs, ours = engine.url, outbox.store.engine.url
    if (theirs.host, theirs.port, theirs.database) == (ours.host, ours.port, ours.database):
        yield fine("staging", f"the registered session stages at the same address ({where})")
    else:
        own = ours.render_as_string(hide_password=True)
        yield warning(
            "staging",
            f"what is staged goes to {where}, and the relay reads {own}: are they one database?",
            f"{SAME}; see with {command('ls')} whether what you stage arrives",
        )
