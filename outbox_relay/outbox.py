"""The one object that a shop holds, and the only place where the parts are joined."""

from __future__ import annotations

import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from outbox_relay import beat
from outbox_relay.errors import SettingsError
from outbox_relay.events import Events
from outbox_relay.publish.peek import look_at
from outbox_relay.publish.queues import Queues
from outbox_relay.settings import ENABLE_HINT, Settings, is_enabled
from outbox_relay.staging import astage as awaiting
from outbox_relay.staging import capture as capturing
from outbox_relay.staging import marked as marking
from outbox_relay.staging.begin import Begin
from outbox_relay.staging.connections import registered
from outbox_relay.staging.once import aonce, once
from outbox_relay.staging.options import Options
from outbox_relay.staging.shadow import ShadowStager
from outbox_relay.staging.stage import Stager
from outbox_relay.store.engine import configure_sqlite
from outbox_relay.store.inspection import Inspection
from outbox_relay.store.outbox import Store
from outbox_relay.store.schema import Tables, build
from outbox_relay.store.wake import WakeThrottle
from outbox_relay.worker import install as worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from celery import Celery
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outbox_relay.core.row import Staged


class Outbox:
    """The transactional outbox of one Celery app.

    Nothing is read, opened or started here: the app's configuration may still change. Each part is made when it is
    first asked for, once a process; a forked child makes its own.

    ``session`` is the shop's own registry of sessions, which knows the current one: a ``scoped_session``, Flask's
    ``db.session``, or a function that returns a session or connection. It is what ``None`` stands for when staging.

    Raises:
        SettingsError: the app has an outbox already, or ``session`` does not know a current session.
    """

    def __init__(self, app: Celery, *, session: Callable[[], Any] | None = None) -> None:
        if getattr(app, "outbox", None) is not None:
            raise SettingsError("this app has an outbox already: use app.outbox")
        self.app = app
        self.session = registered(session)
        self.events = Events()
        self._settings: Settings | None = None
        self._tables: Tables | None = None
        self._queues: Queues | None = None
        self._store: Store | None = None
        self._stager: Stager | None = None
        self._marks: marking.Marked | None = None
        self._marks_read = False
        self._lock = threading.RLock()
        app.outbox = self
        _living.add(self)
        marking.install(app, self._marked)
        worker.install(self)
        beat.install(self)

    def __repr__(self) -> str:
        return f"<Outbox of {self.app.main or 'an unnamed app'}>"

    # -- staging, in the caller's transaction -----------------------------------------------------------------------

    def stage(
        self,
        connection: Any,
        signature: Any,
        *,
        namespace: str = "default",
        task_queue: str | None = None,
        node: str | None = None,
        workflow_id: str | None = None,
        run_id: str | None = None,
        ordinal: int | None = None,
        dispatch_key: str | None = None,
        max_attempts: int | None = None,
        settle_on: str | None = None,
        bind: Engine | None = None,
    ) -> Staged:
        """Stage one task in the caller's transaction: it runs if that commits, and only then.

        ``connection`` is a SQLAlchemy ``Session``, ``scoped_session`` or ``Connection``, a psycopg connection, a Django
        connection or its alias; None is the registered session, or Django's default. ``signature`` is what
        ``task.s(...)`` makes, or a chain that starts with one task; options set on it (countdown, eta, expires,
        priority, headers, serializer, links, ...) mean what they mean to ``apply_async``, but that a countdown counts
        by the database's clock.

        The row's idempotency key is ``dispatch_key``, or is made of ``workflow_id``, ``run_id`` and ``ordinal``, or is
        the task id. Staging the same content again under the same key adds nothing: the first row's task id comes back,
        with ``created`` false. ``task_queue`` is by default the queue that Celery routes the task to, and ``node`` pins
        the row to one label. ``bind`` says which of a session's databases holds the outbox.

        Raises:
            SettingsError: the outbox is switched off, or a setting makes no sense.
            StagingError: the task cannot be staged, or a rollback would not undo it; nothing was written.
            DispatchKeyConflict: the key is taken by other content.
            TypeError: the arguments do not fit the task (Celery's own check).
            StoreError: the outbox's tables are not in this database.
        """
        options = Options(
            namespace=namespace,
            task_queue=task_queue,
            node=node,
            workflow_id=workflow_id,
            run_id=run_id,
            ordinal=ordinal,
            dispatch_key=dispatch_key,
            max_attempts=max_attempts,
            settle_on=settle_on,
        )
        return self._staging().stage(self._given(connection), signature, options, bind)

    def stage_many(
        self, connection: Any, signatures: Iterable[Any], *, bind: Engine | None = None, **options: Any
    ) -> list[Staged]:
        """Stage many tasks with few statements; the result is in the order of ``signatures``.

        Takes ``namespace``, ``task_queue``, ``node``, ``workflow_id``, ``run_id``, ``max_attempts`` and ``settle_on``,
        and raises, as :meth:`stage` does. Under a ``workflow_id`` the rows have the ordinals 0, 1, 2 and so on.
        A group may be given for ``signatures``; whatever sends several messages stages them all.

        ``signatures`` are taken a thousand at a time and inserted meanwhile, so a generator of a hundred thousand needs
        no more memory than the result. They may come from the same session or connection, but not from psycopg's
        ``Cursor.stream``, and must not end the transaction. Of a call that fails, whatever the reason, nothing stays,
        and the transaction goes on, unless the database itself has ended it.
        """
        return self._staging().stage_many(self._given(connection), signatures, _options(options, SEVERAL), bind)

    async def astage(self, connection: Any, signature: Any, *, bind: Engine | None = None, **options: Any) -> Staged:
        """Stage one task as :meth:`stage` does, with its options and errors, by await.

        ``connection`` is an ``AsyncSession``, ``async_scoped_session`` or ``AsyncConnection`` of SQLAlchemy, or a
        psycopg ``AsyncConnection``. ``bind`` is the sync engine (``async_engine.sync_engine``).
        """
        return await awaiting.astage(self._staging(), connection, signature, _options(options, SINGLE), bind)

    async def astage_many(
        self, connection: Any, signatures: Iterable[Any], *, bind: Engine | None = None, **options: Any
    ) -> list[Staged]:
        """Stage many tasks as :meth:`stage_many` does, by await."""
        return await awaiting.astage_many(self._staging(), connection, signatures, _options(options, SEVERAL), bind)

    def capture(
        self, connection: Any = None, *, bind: Engine | None = None, **options: Any
    ) -> AbstractContextManager[None]:
        """Stage, in the transaction of ``connection``, what this app sends inside the block.

        ``delay``, ``apply_async``, ``send_task`` and canvas calls return what they always return, without a word to
        broker or result backend. Captures nest, and the innermost one counts. A task's own retry is not captured. Child
        tasks of asyncio, ``asyncio.to_thread`` and the like belong to the block that they are started in, plain threads
        and executors do not: those send directly. Takes the options of :meth:`stage_many` but for ``task_queue``,
        which is Celery's ``queue``; raises at the call that sends what :meth:`stage` raises.
        """
        return capturing.capture(self._staging(), self._given(connection), _options(options, CAPTURED), bind)

    def acapture(
        self, connection: Any, *, bind: Engine | None = None, **options: Any
    ) -> AbstractAsyncContextManager[None]:
        """Stage, in the transaction of an async session or connection, what this app sends inside the block.

        As :meth:`capture`; but as ``delay`` cannot wait for a database, a row is inserted when the transaction or
        savepoint that it was sent in commits, or at the end of the block. Errors of the database are raised there.
        """
        return awaiting.acapture(self._staging(), connection, _options(options, CAPTURED), bind)

    def begin(self, maker: Any, *, bind: Engine | None = None, **options: Any) -> Begin:
        """Begin a transaction with a capture around it, and commit it at the end of the block.

        ``maker`` is a ``sessionmaker``, a ``scoped_session`` or an engine; the block is given the session, or the
        connection. With an ``async_sessionmaker`` and the like, write ``async with``. What the flush at commit sends is
        captured too. Takes the options of :meth:`capture`.
        """
        return Begin(self._staging(), maker, _options(options, CAPTURED), bind)

    def once(self, connection: Any = None, *, bind: Engine | None = None) -> None:
        """Make the running task's effects in this transaction happen once, however often the task is delivered.

        Call it in the task, in the transaction of its effects and before them. Outside a task, or in one whose message
        does not come from an outbox, it does nothing.

        Raises:
            AlreadyDone: an earlier run has committed. Let it through: the worker reports the row as done.
            RunAgain: above READ COMMITTED, another run was committing just now. Let it through: the row runs again.
            StoreError: the marker's table is not there; `outbox migrate --once-only URL` makes it.
            StagingError: a rollback of this connection's transaction would not undo the effects.
        """
        once(self.app, lambda: self.tables, lambda: self._given(connection), bind)

    async def aonce(self, connection: Any, *, bind: Engine | None = None) -> None:
        """Do what :meth:`once` does, on an async session or connection."""
        await aonce(self.app, lambda: self.tables, connection, bind)

    @staticmethod
    def configure_sqlite(engine: Engine | AsyncEngine) -> None:
        """Give an engine on SQLite, sync or async, honest transactions; call it once, right after ``create_engine``.

        Python's sqlite3 sends no BEGIN before a SAVEPOINT, so that what is staged in a savepoint could survive the
        rollback of the transaction around it.
        """
        sync: Any = getattr(engine, "sync_engine", engine)
        configure_sqlite(sync)

    def _given(self, connection: Any) -> Any:
        return self.session() if connection is None and self.session is not None else connection

    def _staging(self) -> Stager:
        if self._stager is None:
            self.require_enabled()
            with self._lock:
                if self._stager is None:
                    parts = self.app, self.settings, self.tables, WakeThrottle()
                    shadow = self.settings.shadow
                    self._stager = ShadowStager(*parts, events=self.events) if shadow else Stager(*parts)
        return self._stager

    def _marked(self) -> marking.Marked | None:
        """The tasks that are staged wherever they are sent from; None where the outbox is switched off.

        That is found out once a process: it is asked at every task that the app sends. A worker may do without a
        database, until it is to stage something.
        """
        if not self._marks_read:
            if self.enabled:
                settings = Settings.from_conf(self.app.conf, main=self.app.main, needs_database=False)
                self._marks = marking.Marked(
                    self.app,
                    stager=self._staging,
                    settings=settings,
                    session=self.session,
                    engine=lambda: self.store.engine,
                    events=self.events,
                )
            self._marks_read = True
        return self._marks

    # -- the parts, made when first asked for -----------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings, read from the app's configuration at first use.

        Raises:
            SettingsError: a key is unknown or makes no sense.
        """
        if self._settings is None:
            with self._lock:
                if self._settings is None:
                    self._settings = Settings.from_conf(self.app.conf, main=self.app.main)
        return self._settings

    @property
    def enabled(self) -> bool:
        """Whether the configuration switches the outbox on. A dormant one asks nothing else of it."""
        return is_enabled(self.app.conf) if self._settings is None else self._settings.enabled

    @property
    def tables(self) -> Tables:
        """The outbox's tables, as SQLAlchemy Core knows them."""
        if self._tables is None:
            with self._lock:
                if self._tables is None:
                    self._tables = build(self.settings.table_prefix, self.settings.schema)
        return self._tables

    @property
    def queues(self) -> Queues:
        """Which broker queue a row goes to, and how it is declared."""
        if self._queues is None:
            with self._lock:
                if self._queues is None:
                    self._queues = Queues(self.app, self.settings)
        return self._queues

    @property
    def store(self) -> Store:
        """The relay's and the operator's own way to the tables; staging uses the caller's connection instead."""
        if self._store is None:
            with self._lock:
                if self._store is None:
                    self._store = Store.open(self.settings)
        return self._store

    @property
    def inspect(self) -> Inspection:
        """Questions about rows, relays and workers."""
        self.require_enabled()
        return self.inspection()

    def inspection(self) -> Inspection:
        """The same, in a dormant outbox too."""
        return Inspection(self.store, self.settings, partial(look_at, self.app))

    def require_enabled(self) -> None:
        """Refuse to go on in a dormant outbox.

        Raises:
            SettingsError: ``outbox_enabled`` is not True.
        """
        if not self.enabled:
            raise SettingsError(f"the outbox is switched off: {ENABLE_HINT}")

    def close(self) -> None:
        """Close what this process opened. The outbox can be used again afterwards."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()


CAPTURED = ("namespace", "node", "workflow_id", "run_id", "max_attempts", "settle_on")
SEVERAL = (*CAPTURED, "task_queue")
SINGLE = (*SEVERAL, "ordinal", "dispatch_key")


def _options(options: dict[str, Any], known: tuple[str, ...]) -> Options:
    """Options of a method that does not spell them out; what names one row makes no sense for several."""
    for name in options:
        if name not in known:
            raise TypeError(f"{name!r} is not an option here; there are {', '.join(known)}")
    return Options(**options)


def outbox_of(app: Celery) -> Outbox:
    """Return the app's outbox; it is made where the app has none yet."""
    existing = getattr(app, "outbox", None)
    return existing if isinstance(existing, Outbox) else Outbox(app)


_living: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A connection pool must not be used on both sides of a fork, and a lock may have been held by another thread."""
    for outbox in list(_living):
        outbox._lock = threading.RLock()
        outbox._store = None
        outbox._stager = None


os.register_at_fork(after_in_child=_after_fork_in_child)
