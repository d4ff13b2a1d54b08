"""The one object that a shop holds, and the only place where the parts are joined."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from outbox_relay.errors import SettingsError
from outbox_relay.events import Events
from outbox_relay.settings import ENABLE_HINT, Settings, is_enabled
from outbox_relay.store.schema import Tables, build

if TYPE_CHECKING:
    from celery import Celery

    from outbox_relay.publish.queues import Queues
    from outbox_relay.store.outbox import Store


class Outbox:
    """The transactional outbox of one Celery app.

    Nothing is read, opened or started here: the app's configuration may still change. Each part is made when it is
    first asked for, once a process; a forked child makes its own.

    Raises:
        SettingsError: the app has an outbox already.
    """

    def __init__(self, app: Celery) -> None:
        if getattr(app, "outbox", None) is not None:
            raise SettingsError("this app has an outbox already: use app.outbox")
        self.app = app
        self.events = Events()
        self._forget()
        self._lock = threading.RLock()
        app.outbox = self
        _living.add(self)

    def __repr__(self) -> str:
        return f"<Outbox of {self.app.main or 'an unnamed app'}>"

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
            from outbox_relay.publish.queues import Queues

            with self._lock:
                if self._queues is None:
                    self._queues = Queues(self.app, self.settings)
        return self._queues

    @property
    def store(self) -> Store:
        """The relay's and the operator's own way to the tables; staging uses the caller's connection instead."""
        if self._store is None:
            from outbox_relay.store.outbox import Store

            with self._lock:
                if self._store is None:
                    self._store = Store.open(self.settings, self.events)
        return self._store

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

    def _forget(self) -> None:
        self._settings: Settings | None = None
        self._tables: Tables | None = None
        self._queues: Queues | None = None
        self._store: Store | None = None


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


os.register_at_fork(after_in_child=_after_fork_in_child)
