"""A transaction with a capture around it, for `with` and for `async with`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker

from outbox_relay.errors import StagingError
from outbox_relay.staging.astage import abegin
from outbox_relay.staging.capture import begin

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import TracebackType

    from outbox_relay.staging.options import Options
    from outbox_relay.staging.stage import Stager

ASYNC = (AsyncEngine, async_scoped_session, async_sessionmaker)


class Begin:
    """What :meth:`outbox_relay.Outbox.begin` returns: enter it once, with `with` or `async with` as the maker needs."""

    def __init__(self, stager: Stager, maker: Any, options: Options, bind: Any) -> None:
        self._arguments = (stager, maker, options, bind)
        self._sync: AbstractContextManager[Any] | None = None
        self._async: AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> Any:
        if isinstance(self._arguments[1], ASYNC):
            raise StagingError("this maker makes async sessions or connections: write `async with outbox.begin(...)`")
        self._sync = begin(*self._arguments)
        return self._sync.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._sync is not None
        return self._sync.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Any:
        self._async = abegin(*self._arguments)
        return await self._async.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._async is not None
        return await self._async.__aexit__(kind, error, traceback)
