"""Django's connections: the rows go through Django's own cursor, which knows when a transaction is spoiled."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from outbox_relay.errors import StagingError
from outbox_relay.staging.place import OUTSIDE, Place
from outbox_relay.store.raw import RawConnection
from outbox_relay.store.sql import SQLITE

if TYPE_CHECKING:
    from outbox_relay.store.raw import Found

HINT = "stage inside `with transaction.atomic():`"


def is_django(given: Any) -> bool:
    """Whether this is a connection of Django's; does not import Django to find out."""
    if "django.db" not in sys.modules:
        return False
    from django.db.backends.base.base import BaseDatabaseWrapper  # noqa: PLC0415 - only where Django is in use
    from django.utils.connection import ConnectionProxy  # noqa: PLC0415

    return isinstance(given, (BaseDatabaseWrapper, ConnectionProxy))


def connection_of_alias(alias: str | None) -> Any:
    """Return a proxy for the connection of an alias, None for the default one, in whichever thread it is used.

    Raises:
        StagingError: there is no such connection, or no Django.
    """
    if alias is not None and "://" in alias:
        raise StagingError("a URL is no connection: pass one of its connections")
    said = "None stands for Django's default connection" if alias is None else f"{alias!r} stands for one of Django's"
    sqlalchemy = "otherwise pass a Session, scoped_session or Connection of SQLAlchemy, or a psycopg connection"
    try:
        from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415 - only where Django is in use
        from django.db import DEFAULT_DB_ALIAS, connections  # noqa: PLC0415
        from django.utils.connection import ConnectionProxy  # noqa: PLC0415
    except ImportError:
        raise StagingError(f"{said}, and Django is not installed here: {sqlalchemy}") from None
    name = DEFAULT_DB_ALIAS if alias is None else alias
    try:
        known = list(connections)
    except ImproperlyConfigured:
        raise StagingError(f"{said}, and Django is not configured here: {sqlalchemy}") from None
    if name not in known:
        raise StagingError(f"{said}, but DATABASES has no {name!r}: there are {', '.join(map(repr, known))}")
    return ConnectionProxy(connections, name)


def enter_django(connection: Any) -> Place:
    """Return the place to stage on.

    Raises:
        StagingError: a rollback would not undo what is staged here.
    """
    from django.core.exceptions import SynchronousOnlyOperation  # noqa: PLC0415 - only where Django is in use

    try:
        in_transaction = connection.in_atomic_block or not connection.get_autocommit()
    except SynchronousOnlyOperation as error:
        raise StagingError(
            "Django's connections do not work in async code: call a function with the whole transaction in it "
            "by sync_to_async"
        ) from error
    if not in_transaction:
        raise StagingError(
            f"{OUTSIDE}this Django connection commits each statement by itself (in an on_commit hook, too: there the "
            f"transaction is over), so a rollback would leave the task; {HINT}"
        )
    if connection.needs_rollback:
        raise StagingError("this transaction has failed, and Django will roll it back: nothing can be staged in it")
    if connection.vendor == SQLITE and connection.in_atomic_block and not connection.commit_on_exit:
        raise StagingError(
            "staging in atomic() on SQLite with autocommit off is refused: Python's sqlite3 sends no BEGIN before a "
            "SAVEPOINT, so a rollback would leave the task; leave autocommit on, and let atomic() begin the transaction"
        )
    if _is_of_testcase_alone(connection):
        raise StagingError(
            f"{OUTSIDE}the only transaction here is the one that TestCase puts around each test, and in production "
            f"there would be none; {HINT}"
        )
    return Place(raw_django(connection))


def is_open(connection: Any) -> bool:
    """Whether a transaction of the caller's own is open on this connection of Django's; none in async code."""
    from django.core.exceptions import SynchronousOnlyOperation  # noqa: PLC0415 - only where Django is in use

    try:
        in_transaction = connection.in_atomic_block or not connection.get_autocommit()
    except SynchronousOnlyOperation:
        return False
    return bool(in_transaction) and not _is_of_testcase_alone(connection)


def raw_django(connection: Any) -> RawConnection:
    """Return a connection to execute statements on, whatever becomes of them."""
    return RawConnection(connection.vendor, _Run(connection), format_style=True)


def _is_of_testcase_alone(connection: Any) -> bool:
    """Whether the code under test began no transaction of its own.

    In a TestCase everything runs in a transaction, so that code passes there that production refuses.
    """
    blocks = connection.atomic_blocks
    return bool(blocks) and all(block._from_testcase for block in blocks)


class _Run:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self, text: str, parameters: Any, returns: bool) -> Found:
        with self._connection.cursor() as cursor:
            cursor.execute(text, parameters)
            if not returns:
                return (), ()
            return [column[0] for column in cursor.description], cursor.fetchall()
