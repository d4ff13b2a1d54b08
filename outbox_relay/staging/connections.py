"""What a caller may pass as ``connection``, of each library, and the way into its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_relay.errors import SettingsError, StagingError
from outbox_relay.staging.django import connection_of_alias, enter_django, is_django
from outbox_relay.staging.psycopg import enter_psycopg, is_async_psycopg, is_psycopg
from outbox_relay.staging.transaction import enter_sqlalchemy

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.staging.place import Place

KINDS = (
    "pass a SQLAlchemy Session, scoped_session or Connection, a psycopg connection, or a Django connection or its alias"
)
ASYNC_KINDS = "pass a SQLAlchemy AsyncSession, async_scoped_session or AsyncConnection, or a psycopg AsyncConnection"
SYNC_SQLALCHEMY = (Session, sa.Connection, scoped_session)
ASYNC_SQLALCHEMY = (AsyncSession, AsyncConnection, async_scoped_session)


def accept(given: Any) -> Any:
    """Return the connection that a caller means: the session of a scope, Django's connection of an alias.

    Raises:
        StagingError: it is no kind of connection that rows can be staged on.
    """
    if isinstance(given, (Session, sa.Connection)):
        return given
    if isinstance(given, scoped_session):
        session: Session = given()
        return session
    if given is None or isinstance(given, str):
        return connection_of_alias(given)
    if is_async_psycopg(given) or isinstance(given, ASYNC_SQLALCHEMY):
        raise _refusal(given, "it is async: use astage, astage_many, acapture or aonce, with await")
    if is_psycopg(given) or is_django(given):
        return given
    raise _refusal(given, _hint(given, KINDS))


def accept_async(given: Any) -> Any:
    """Return the async connection that a caller means.

    Raises:
        StagingError: it is no kind of connection that rows can be staged on by await.
    """
    if isinstance(given, async_scoped_session):
        given = given()
    if isinstance(given, (AsyncSession, AsyncConnection)) or is_async_psycopg(given):
        return given
    if isinstance(given, SYNC_SQLALCHEMY) or is_psycopg(given) or is_django(given) or isinstance(given, str):
        raise _refusal(given, "it is not async: use stage, stage_many, capture or once, without await")
    raise _refusal(given, _hint(given, ASYNC_KINDS))


def enter(given: Any, bind: Any = None) -> Place:
    """Return the place to stage on. A transaction is begun where the caller's library would begin one by itself.

    Raises:
        StagingError: a rollback would not undo what is staged here.
    """
    if isinstance(given, (Session, sa.Connection)):
        return enter_sqlalchemy(given, bind)
    if bind is not None:
        raise StagingError("bind= goes with a SQLAlchemy Session: this connection is bound already")
    return enter_psycopg(given) if is_psycopg(given) else enter_django(given)


def registered(session: Any) -> Callable[[], Any] | None:
    """Check what a shop registers as its current session.

    Raises:
        SettingsError: it does not know a current session.
    """
    if session is None or isinstance(session, scoped_session):
        return session
    if isinstance(session, (sessionmaker, async_sessionmaker)):
        raise SettingsError(
            "session= takes a registry that knows the current session: scoped_session(maker), not a maker"
        )
    if isinstance(session, (*ASYNC_SQLALCHEMY, Session, sa.Connection)) or not callable(session):
        raise SettingsError(
            f"session= takes a scoped_session, or a function that returns the current session, not {session!r}"
        )
    return session  # type: ignore[no-any-return]


def _refusal(given: Any, hint: str) -> StagingError:
    return StagingError(f"nothing can be staged on a {type(given).__module__}.{type(given).__qualname__}: {hint}")


def _hint(given: Any, kinds: str) -> str:
    if isinstance(given, (sa.Engine, AsyncEngine)):
        return "an engine has no transaction: pass the connection of `with engine.begin() as connection`"
    if isinstance(given, (sessionmaker, async_sessionmaker)):
        return f"a sessionmaker has no transaction: use begin(maker), or pass the Session that it makes; {kinds}"
    return kinds
