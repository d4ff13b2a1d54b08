"""Rows that async code has sent and that wait to be inserted: ``delay`` is no coroutine, so it cannot insert by itself.

A row belongs to the transaction or savepoint in which it was sent. It is inserted before that one commits, and dropped
when that one ends in any other way, so that its fate is the same as if it had been inserted at the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.util.concurrency import in_greenlet

from outbox_relay.errors import StagingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.core.row import NewRow

    Insert = Callable[[list[NewRow]], object]

KEY = "outbox_relay.buffer"  # in Session.info
GONE = "nothing can be staged here now: the transaction has failed, has been prepared, or is over"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row, the transaction in which it was sent, and what inserts it."""

    transaction: Any
    insert: Insert
    row: NewRow


class Buffer:
    """The rows that wait in one session or connection."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._committing: Any = None
        self._outer_commits = False

    def add(self, transaction: Any, insert: Insert, row: NewRow) -> None:
        self._entries.append(Entry(transaction, insert, row))
        if self._committing is transaction and in_greenlet():  # sent by the flush of that very commit: the last chance
            self.flush(transaction)

    @property
    def transactions(self) -> list[Any]:
        """In which of them something was sent that still waits."""
        return [one.transaction for one in self._entries]

    def flush(self, *transactions: Any) -> None:
        """Insert what was sent in ``transactions``: the innermost one now, and those around it that end with it.

        Where that fails, the rows wait on: a commit that follows all the same must not leave them behind in silence.
        """
        mine = [one for one in self._entries if one.transaction in transactions]
        self.drop(*transactions)
        try:
            for insert, entries in groupby(mine, key=lambda one: one.insert):
                insert([one.row for one in entries])
        except BaseException:
            self._entries = [*mine, *self._entries]
            raise

    def drop(self, *transactions: Any) -> None:
        self._entries = [one for one in self._entries if one.transaction not in transactions]

    def before_commit(self, transaction: Any) -> None:
        """The commit of ``transaction``, the innermost one, begins, or that of one around it.

        One around it asks first, then has this one commit, and does not ask again.
        """
        self._outer_commits = self._committing is transaction
        self._committing = transaction
        self.flush(transaction)

    def after_end(self, transaction: Any, outer: Any) -> None:
        """``transaction`` is over, and ``outer`` the innermost one now, if there is any."""
        self.drop(transaction)
        outer_commits, self._outer_commits, self._committing = self._outer_commits, False, None
        if outer_commits and outer is not None:
            self._committing = outer
            self.flush(outer)


# -- sessions -----------------------------------------------------------------------------------------------------


def buffer_of(target: Session | sa.Connection) -> Buffer:
    """Return the buffer of the sync side of an async session or connection; it is made at the first use."""
    return _of_session(target) if isinstance(target, Session) else _of_connection(target)


def transaction_of(target: Session | sa.Connection) -> Any:
    """Return the innermost transaction or savepoint; a session without one begins it, which asks nothing of a database.

    Raises:
        StagingError: there is none that a row could belong to.
    """
    if isinstance(target, Session) and not target.is_active:
        raise StagingError(GONE)
    if (found := _innermost(target)) is not None:
        return found
    if isinstance(target, sa.Connection) or not target.autobegin:
        raise StagingError(
            "nothing can be staged on this connection before a transaction has begun: write `async with x.begin()`"
        )
    try:
        return target.begin()
    except InvalidRequestError as error:
        raise StagingError(f"nothing can be staged in this session now: {error}") from error


def _of_session(session: Session) -> Buffer:
    buffer: Buffer | None = session.info.get(KEY)
    if buffer is None:
        buffer = session.info[KEY] = Buffer()
        event.listen(session, "before_commit", _before_commit)
        event.listen(session, "after_transaction_end", _after_end)
    return buffer


def _before_commit(session: Session) -> None:
    """Fires for savepoints too, before the flush of what the session holds."""
    session.info[KEY].before_commit(_innermost(session))


def _after_end(session: Session, transaction: Any) -> None:
    session.info[KEY].after_end(transaction, _innermost(session))


def _innermost(target: Session | sa.Connection) -> Any:
    return target.get_nested_transaction() or target.get_transaction()


def flush(target: Session | sa.Connection) -> None:
    """Insert what was sent in the innermost transaction, if it can still take rows."""
    transaction = _innermost(target)
    if transaction is not None and transaction.is_active:
        buffer_of(target).flush(transaction)


# -- connections --------------------------------------------------------------------------------------------------

_of_connections: WeakKeyDictionary[sa.Connection, Buffer] = WeakKeyDictionary()


def _of_connection(connection: sa.Connection) -> Buffer:
    buffer = _of_connections.get(connection)
    if buffer is None:
        buffer = _of_connections[connection] = Buffer()
        for name, listener in (
            ("commit", _before_core_commit),
            ("prepare_twophase", _before_core_commit),
            ("commit_twophase", _before_core_commit),
            ("release_savepoint", _before_core_release),
            ("rollback", _before_core_rollback),
            ("rollback_twophase", _before_core_rollback),
            ("rollback_savepoint", _before_core_rollback_to),
        ):
            event.listen(connection, name, listener)
    return buffer


def _before_core_commit(connection: sa.Connection, *_: Any) -> None:
    """A commit releases the savepoints that are still open, and tells nothing of them."""
    buffer = _of_connections[connection]
    buffer.before_commit(_innermost(connection))
    buffer.flush(*buffer.transactions)


def _before_core_release(connection: sa.Connection, name: str, *_: Any) -> None:
    buffer = _of_connections[connection]
    buffer.before_commit(_innermost(connection))
    buffer.flush(*_out_to(connection, name))


def _before_core_rollback(connection: sa.Connection, *_: Any) -> None:
    buffer = _of_connections[connection]
    buffer.drop(*buffer.transactions)


def _before_core_rollback_to(connection: sa.Connection, name: str, *_: Any) -> None:
    _of_connections[connection].drop(*_out_to(connection, name))


def _out_to(connection: sa.Connection, name: str) -> list[Any]:
    """The savepoints from the innermost one out to that of a name: they end together."""
    found: list[Any] = []
    one: Any = connection.get_nested_transaction()
    while one is not None:
        found.append(one)
        if one._savepoint == name:
            return found
        one = one._previous_nested
    return found[:1]
