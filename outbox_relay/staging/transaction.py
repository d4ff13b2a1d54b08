"""A transaction of SQLAlchemy's: which connection it is on, and whether a rollback would undo what is staged in it.

Whether there is a transaction is asked of the driver. SQLAlchemy says that there is one under AUTOCOMMIT too, where a
rollback undoes nothing.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
from sqlalchemy.orm import Session

from outbox_relay.errors import StagingError
from outbox_relay.staging.place import OUTSIDE, Place

TWO_DATABASES = (
    "two databases take part in this transaction, and a task staged in one of them would not share the fate of the "
    "other: say where to stage with bind=engine, or use a two-phase session"
)
WATCHED = "outbox_relay.engine"  # in Session.info: the engine that holds the rows staged in the current transaction


def enter_sqlalchemy(given: Session | sa.Connection, bind: Any = None) -> Place:
    """Return the connection to stage on. A transaction is begun where SQLAlchemy would begin one (autobegin).

    Raises:
        StagingError: a rollback would not undo what is staged here.
    """
    if isinstance(given, Session):
        connection = _connection_of(given, bind)
        two_phase = given.twophase
    else:
        if bind is not None:
            raise StagingError("bind= goes with a Session; a Connection is bound already")
        connection, two_phase = given, False
    if connection.closed or connection.invalidated:
        raise StagingError("nothing can be staged on a closed or lost connection")
    begun = None if connection.in_transaction() else _begin(connection)
    if not rollback_would_undo(connection):
        if begun is not None:
            begun.rollback()
        raise StagingError(
            f"{OUTSIDE}this connection commits each statement by itself (AUTOCOMMIT), "
            "so a rollback would leave the task; stage inside `with session.begin()` without that isolation level"
        )
    if connection.dialect.name == "sqlite" and connection.in_nested_transaction() and not _has_begin(connection):
        raise StagingError(
            "staging in a savepoint of this SQLite connection is refused: Python's sqlite3 sends no BEGIN before a "
            "SAVEPOINT, so a rollback of the outer transaction would leave the task; call "
            "outbox.configure_sqlite(engine) once, right after create_engine"
        )
    if not two_phase:
        two_phase = isinstance(connection.get_transaction(), sa.TwoPhaseTransaction)
    return Place(connection, two_phase)


def rollback_would_undo(connection: sa.Connection) -> bool:
    """Ask the driver whether the transaction that SQLAlchemy sees is real. The connection is in one, as it sees it."""
    pooled = connection.connection
    if not connection.dialect.detect_autocommit_setting(pooled.dbapi_connection):  # type: ignore[arg-type]
        return True
    driver: Any = pooled.driver_connection  # in the driver's autocommit, only a transaction that is open counts
    status = getattr(getattr(driver, "info", None), "transaction_status", None)  # psycopg
    if status is not None:
        return bool(status.name == "INTRANS")
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    return bool(getattr(driver, "in_transaction", False))  # sqlite3, aiosqlite


def _begin(connection: sa.Connection) -> sa.Transaction:
    try:
        return connection.begin()
    except InvalidRequestError as error:
        raise StagingError(f"nothing can be staged on this connection now: {error}") from error


def _has_begin(connection: sa.Connection) -> bool:
    """Whether the SQLite transaction around a savepoint was begun by a BEGIN, as far as one can know."""
    driver: Any = connection.connection.driver_connection
    if getattr(driver, "autocommit", None) is False:  # Python 3.12's own way to honest transactions
        return True
    return driver.isolation_level is None and bool(connection.dispatch.begin)  # SQLAlchemy's recipe, and ours


# -- one transaction, one database --------------------------------------------------------------------------------


def _connection_of(session: Session, bind: Any) -> sa.Connection:
    try:
        # Not session.execute: that would flush the caller's objects first.
        connection = session.connection(bind_arguments={} if bind is None else {"bind": bind})
    except UnboundExecutionError as error:
        raise StagingError(
            "the session has several databases and none by default: say where to stage with bind=engine"
        ) from error
    except InvalidRequestError as error:
        raise StagingError(f"nothing can be staged in this session now: {error}") from error
    if bind is None and not session.twophase:
        _hold_to_one_database(session, connection.engine)
    return connection


def _hold_to_one_database(session: Session, engine: sa.Engine) -> None:
    """Refuse where another database is in the transaction, and see to it that none joins it later."""
    transaction = session.get_transaction()
    joined = getattr(transaction, "_connections", None) or ()
    if any(one.engine is not engine for one in joined):
        raise StagingError(TWO_DATABASES)
    session.info[WATCHED] = engine


def watch_sessions() -> None:
    """See to it that no second database joins a transaction in which something was staged; once a process.

    The listeners are those of all sessions: to listen to each one that stages would cost a tenth of the staging.
    """
    for name, listener in (("after_begin", _refuse_second_database), ("after_transaction_end", _forget_database)):
        if not event.contains(Session, name, listener):
            event.listen(Session, name, listener)


def _refuse_second_database(session: Session, _: Any, connection: sa.Connection) -> None:
    engine = session.info.get(WATCHED)
    if engine is not None and connection.engine is not engine:
        raise StagingError(TWO_DATABASES)


def _forget_database(session: Session, transaction: Any) -> None:
    if transaction.parent is None and WATCHED in session.info:
        session.info[WATCHED] = None
