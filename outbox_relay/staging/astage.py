"""Staging by await: on async sessions and connections of SQLAlchemy, and on psycopg's async connections.

What a row is made of is worked out by the code that sync staging uses. What touches the database runs in a greenlet, as
SQLAlchemy's own async side does, in the caller's task: no thread takes part.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from celery._state import _task_stack
from celery.canvas import Signature
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.util import greenlet_spawn

from outbox_relay.errors import StagingError
from outbox_relay.publish.capture import diverted
from outbox_relay.staging.buffer import buffer_of, flush, transaction_of
from outbox_relay.staging.bulk import stage_pages
from outbox_relay.staging.capture import Capture
from outbox_relay.staging.connections import accept_async
from outbox_relay.staging.stage import Stager, refuse_eager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    import sqlalchemy as sa
    from sqlalchemy.orm import Session

    from outbox_relay.core.row import NewRow, Staged
    from outbox_relay.staging.options import Options

T = TypeVar("T")


async def astage(stager: Stager, given: Any, signature: Any, options: Options, bind: Any = None) -> Staged:
    """Stage one signature. See :meth:`outbox_relay.Outbox.astage`."""
    target = accept_async(given)
    rows = stager.rows_of_one(signature, options)
    staged = await inside(target, lambda sync: stager.insert(sync, rows, bind))
    stager.send_too([signature], staged, options)
    return staged[0]


async def astage_many(
    stager: Stager, given: Any, signatures: Iterable[Any], options: Options, bind: Any = None
) -> list[Staged]:
    """Stage many signatures. See :meth:`outbox_relay.Outbox.astage_many`."""
    target = accept_async(given)
    task = stager.app.current_worker_task
    request = None if task is None else task.request

    many = signatures if stager.capturing is None else _several(signatures)

    def stage(sync: Any) -> list[Staged]:
        with running(task, request):
            return stage_pages(stager, sync, many, options, bind)

    staged = await inside(target, stage)
    if stager.capturing is not None:
        stager.send_too(_several(many), (), options)
    return staged


def _several(signatures: Any) -> list[Any]:
    return [signatures] if isinstance(signatures, Signature) else list(signatures)


async def inside(target: Any, work: Callable[[Any], T]) -> T:
    """Do ``work`` with the sync side of a connection, in a greenlet that may wait for the database."""
    if isinstance(target, (AsyncSession, AsyncConnection)):
        return await target.run_sync(work)
    return await greenlet_spawn(work, target)


@contextmanager
def running(task: Any, request: Any) -> Iterator[None]:
    """Let Celery know in this greenlet, too, which task runs: what is sent from here names it as its parent."""
    if task is None:
        yield
        return
    _task_stack.push(task)
    task.request_stack.push(request)
    try:
        yield
    finally:
        task.request_stack.pop()
        _task_stack.pop()


class AsyncCapture(Capture):
    """The sink of one block of async code: rows wait in a buffer for their transaction's commit."""

    def __init__(self, stager: Stager, target: Session | sa.Connection, options: Options, bind: Any) -> None:
        super().__init__(stager, target, options, bind)
        self._buffer = buffer_of(target)  # listens from now on: it cannot begin to in the middle of a commit

    def put(self, row: NewRow) -> None:
        self._buffer.add(transaction_of(self.target), self._insert, row)

    def _insert(self, rows: list[NewRow]) -> None:
        self._stager.insert(self.target, rows, self._bind)


@asynccontextmanager
async def acapture(stager: Stager, given: Any, options: Options, bind: Any = None) -> AsyncIterator[None]:
    """Stage what is sent inside. See :meth:`outbox_relay.Outbox.acapture`."""
    refuse_eager(stager.app)
    target = accept_async(given)
    if not isinstance(target, (AsyncSession, AsyncConnection)):
        raise StagingError(
            "psycopg's async connections do not tell when they commit, so nothing can be captured on them: "
            "write await outbox.astage(connection, task.s(...))"
        )
    sink = (stager.acapturing or AsyncCapture)(stager, _sync_side(target), options, bind)
    try:
        with diverted(sink):
            yield
            await inside(target, flush)  # so that errors are raised in the block
    finally:
        sink.closed = True


@asynccontextmanager
async def abegin(stager: Stager, maker: Any, options: Options, bind: Any = None) -> AsyncIterator[Any]:
    """A transaction with a capture around it. See :meth:`outbox_relay.Outbox.begin`."""
    async with _opened(maker) as target, acapture(stager, target, options, bind), target.begin():
        yield target


@asynccontextmanager
async def _opened(maker: Any) -> AsyncIterator[Any]:
    if isinstance(maker, async_scoped_session):
        yield maker()
        return
    if isinstance(maker, (AsyncSession, AsyncConnection)):
        raise StagingError("begin() makes the session itself: pass the async_sessionmaker, or use acapture(session)")
    make = maker.connect if isinstance(maker, AsyncEngine) else maker
    if not callable(make):
        raise StagingError(f"begin() takes an async_sessionmaker, an async_scoped_session or an engine, not {maker!r}")
    made = make()
    if not isinstance(made, (AsyncSession, AsyncConnection)):
        raise StagingError(
            f"begin() has been given {maker!r}, which makes a {type(made).__qualname__}: write `with` for it, "
            "or give an async_sessionmaker"
        )
    async with made as target:
        yield target


def _sync_side(target: AsyncSession | AsyncConnection) -> Any:
    if isinstance(target, AsyncSession):
        return target.sync_session
    if target.sync_connection is None:
        raise StagingError("this AsyncConnection is not connected: write `async with engine.connect() as connection`")
    return target.sync_connection
