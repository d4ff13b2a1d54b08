"""Many signatures in one call, a page of them at a time: beside its result, a call keeps no more than one page.

Two transactions that stage the same keys wait for each other's rows. So that they never do so in a circle, each inserts
them in one order. Task ids that are made in the call are known to nobody else, and keys of a workflow come in the order
of their ordinals, so those rows are inserted page by page, as they come. Only rows whose signatures bring their task
ids wait for the end of the call, and are inserted in the order of their keys.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from celery.canvas import Signature

from outbox_relay.errors import StagingError
from outbox_relay.staging.connections import enter
from outbox_relay.staging.psycopg import is_psycopg
from outbox_relay.store.staging import PAGE, take_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outbox_relay.core.row import NewRow, Staged
    from outbox_relay.staging.options import Options
    from outbox_relay.staging.stage import Stager


def stage_pages(stager: Stager, target: Any, signatures: Iterable[Any], options: Options, bind: Any) -> list[Staged]:
    """Stage signatures as they come. Whatever goes wrong, in them or in the database, no row of the call stays.

    Raises:
        StagingError: one cannot be staged, or the transaction ended in the middle of the call.
    """
    call = _Call(stager, target, options, bind)
    many = iter([signatures] if isinstance(signatures, Signature) else signatures)
    try:
        while page := list(islice(many, PAGE)):
            call.add(page)
        return call.finish()
    except BaseException as error:
        try:
            call.take_back()
        except Exception as failure:
            raise error from failure  # the transaction has failed too, and takes all of it along
        raise


class _Call:
    """What one call has staged so far."""

    def __init__(self, stager: Stager, target: Any, options: Options, bind: Any) -> None:
        self._stager = stager
        self._target = target
        self._options = options
        self._bind = bind
        self._transaction: Any = None
        self._staged: list[Staged | None] = []
        self._named: dict[int, NewRow] = {}  # by its place in the result

    def add(self, page: Sequence[Any]) -> None:
        """Make the rows of some signatures, and insert them but for those that bring their task ids."""
        options = self._options
        places: list[int] = []
        rows: list[NewRow] = []
        in_workflow = options.workflow_id is not None
        if len(page) == PAGE and is_psycopg(self._target) and self._target.lock.locked():
            raise StagingError(  # to execute would wait for the stream, and the stream for this call
                "these signatures come from Cursor.stream(), which keeps the connection to itself until it ends: "
                "fetch() what it gives first, use a server-side cursor, or another connection"
            )
        filler = self._stager.filler(options)
        place = len(self._staged)
        for given in page:
            signature = self._stager.signature(given)
            made = self._stager.rows(signature, options, place if in_workflow else None, filler)
            if not in_workflow and self._stager.names_ids(signature):
                self._named.update(enumerate(made, place))
            else:
                rows += made
                places += range(place, place + len(made))
            place += len(made)
        self._staged += [None] * (place - len(self._staged))
        self._insert(places, rows, sort=False)

    def finish(self) -> list[Staged]:
        """Insert what waited, and return what came of each signature, in their order."""
        self._insert(list(self._named), list(self._named.values()), sort=True)
        self._named.clear()
        return [one for one in self._staged if one is not None]

    def take_back(self) -> None:
        """Delete what has been inserted."""
        if self._transaction is not None and self._transaction is not _transaction(self._connection()):
            return  # the transaction that it was inserted in is over
        created = [one for one in self._staged if one is not None and one.created]
        if created:
            take_back(self._connection(), self._stager.tables, created)

    def _insert(self, places: Sequence[int], rows: list[NewRow], *, sort: bool) -> None:
        if not rows:
            return
        transaction = _transaction(self._connection())
        if self._transaction is not None and transaction is not self._transaction:
            raise StagingError(
                "the transaction ended in the middle of stage_many: what gives the signatures must not end it"
            )
        self._transaction = transaction
        staged = self._stager.insert(self._target, rows, self._bind, sort=sort)
        for place, one in zip(places, staged, strict=True):
            self._staged[place] = one

    def _connection(self) -> Any:
        return enter(self._target, self._bind).connection


def _transaction(connection: Any) -> Any:
    """What SQLAlchemy calls the transaction; other libraries have no name for theirs."""
    return connection.get_transaction() if isinstance(connection, sa.Connection) else None
