"""What is sent inside a block is staged instead: a sink that inserts each message as it is sent."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session

from outbox_relay.errors import StagingError
from outbox_relay.publish.capture import Sending, Sent, diverted
from outbox_relay.staging.connections import accept
from outbox_relay.staging.django import is_django
from outbox_relay.staging.on_commit import stage_on_commit_calls
from outbox_relay.staging.stage import Stager, refuse_broadcast, refuse_eager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_relay.core.row import NewRow
    from outbox_relay.staging.options import Options


class Capture:
    """The sink of one block. The row is inserted at the call, so that savepoints and errors are where the call is."""

    offline = True
    tees = False

    def __init__(self, stager: Stager, target: Any, options: Options, bind: Any) -> None:
        self.app = stager.app
        self.closed = False
        self._stager = stager
        self.target = target
        self._options = options
        self._bind = bind
        self._ordinals = count()  # threads of the block may send at the same time

    def wants(self, sending: Sending) -> bool:
        if sending.is_own_retry:
            return False  # it would be lost with the rollback that the retry causes
        if self.closed:
            raise StagingError(
                f"{sending.name} is sent after the end of the capture that this code was started in (a thread or task "
                "that outlived its block?): wait for it inside the block, or start it outside"
            )
        refuse_eager(self.app)
        refuse_broadcast(sending)
        return True

    def take(self, sent: Sent) -> None:
        ordinal = None if self._options.workflow_id is None else next(self._ordinals)
        self.put(self._stager.row_of(sent, self._options, ordinal))

    def put(self, row: NewRow) -> None:
        self._stager.insert(self.target, [row], self._bind)


@contextmanager
def capture(stager: Stager, given: Any, options: Options, bind: Any = None) -> Iterator[None]:
    """Stage what is sent inside. See :meth:`outbox_relay.Outbox.capture`."""
    refuse_eager(stager.app)
    target = accept(given)
    if is_django(target):
        stage_on_commit_calls()
    sink: Capture = (stager.capturing or Capture)(stager, target, options, bind)
    try:
        with diverted(sink):
            yield
    finally:
        sink.closed = True


@contextmanager
def begin(stager: Stager, maker: Any, options: Options, bind: Any = None) -> Iterator[Any]:
    """A transaction with a capture around it. See :meth:`outbox_relay.Outbox.begin`.

    Around it, because the flush at commit may send tasks too.
    """
    with _opened(maker) as target, capture(stager, target, options, bind), target.begin():
        yield target


@contextmanager
def _opened(maker: Any) -> Iterator[Any]:
    """The session or connection that a factory gives, closed at the end; a scoped session stays its registry's."""
    if isinstance(maker, scoped_session):
        yield maker()
        return
    if isinstance(maker, (Session, sa.Connection)):
        raise StagingError("begin() makes the session itself: pass the sessionmaker, or use capture(session)")
    make: Callable[[], Any] | None = maker.connect if isinstance(maker, sa.Engine) else maker
    if not callable(make):
        raise StagingError(f"begin() takes a sessionmaker, a scoped_session or an engine, not {maker!r}")
    made = make()
    if not isinstance(made, (Session, sa.Connection)):
        hint = "write `async with`" if isinstance(made, (AsyncSession, AsyncConnection)) else "give a sessionmaker"
        raise StagingError(f"begin() has been given {maker!r}, which makes a {type(made).__qualname__}: {hint}")
    with made as target:
        yield target
