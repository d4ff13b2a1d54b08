"""Tasks that are staged wherever they are sent from: ``@app.task(outbox=True)`` and ``outbox_tasks``.

That asks which transaction is the current one, and only Django, a registry of sessions that the shop has registered, or
a function of the shop's can tell honestly. The one place where tasks are named before anything else happens is
``app.send_task``: it is wrapped, once an app.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from celery.app.amqp import AMQP
from celery.backends.base import Backend
from celery.canvas import Signature
from sqlalchemy.orm import Session, scoped_session

from outbox_relay.errors import OutboxError, SettingsError, StagingError
from outbox_relay.publish.capture import innermost, is_offline
from outbox_relay.staging.capture import Capture, capture
from outbox_relay.staging.connections import ASYNC_SQLALCHEMY
from outbox_relay.staging.discarded import watch_for_discard
from outbox_relay.staging.django import connection_of_alias, is_open
from outbox_relay.staging.on_commit import stage_on_commit_calls_of
from outbox_relay.staging.options import Options
from outbox_relay.staging.shadow import Direct, rehearsed, tell
from outbox_relay.store.engine import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery import Celery
    from sqlalchemy import Engine

    from outbox_relay.events import Events
    from outbox_relay.settings import Settings
    from outbox_relay.staging.stage import Stager

OURS = frozenset({"celery", "kombu", "outbox_relay", "vine", "billiard"})
WORKER = frozenset({"celery.app.trace", "celery.worker.request"})  # what runs tasks, and ends those that a child lost
SENDERS = (Signature, Backend, AMQP)  # whose methods a worker calls to send what follows a task
UNMARKED = ("outbox_relay.*", "celery.backend_cleanup")  # what beat sends of its own accord, whatever a shop's "*" says
UNLOCK = "celery.chord_unlock"  # the task that sends a chord's body where the backend cannot


class Marked:
    """The marked tasks of one app.

    ``session`` is the registry that the shop has registered, None: Django's default connection is asked.
    ``engine`` gives the outbox's own engine, for ``outbox_outside_transaction = "own"``.
    """

    def __init__(
        self,
        app: Celery,
        *,
        stager: Callable[[], Stager],
        settings: Settings,
        session: Callable[[], Any] | None,
        engine: Callable[[], Engine],
        events: Events,
    ) -> None:
        self._app = app
        self._stager = stager
        self._patterns = settings.tasks
        self._outside = settings.outside_transaction
        self._shadow = settings.shadow
        self._session = session
        self._engine = engine
        self._events = events
        self._known: dict[str, Options | None] = {}

    def staging(self, name: str, task_id: str | None) -> AbstractContextManager[None] | None:
        """What to send a task in, so that it is staged; None where it is to be sent as ever.

        Raises:
            StagingError: the task is marked, and there is no transaction to stage it in.
            SettingsError: nothing tells which transaction is the current one.
        """
        options = self._options_of(name)
        if options is None or self._is_captured() or self._is_celerys_own(task_id):
            return None
        if not self._shadow:
            return self._staging_of(name, options)
        try:
            staging = self._staging_of(name, options)
        except OutboxError as error:
            tell(self._events, name, error)
            return None
        return None if staging is None else rehearsed(staging, self._events, name)

    def _staging_of(self, name: str, options: Options) -> AbstractContextManager[None] | None:
        target = self._current(name)
        if target is not None:
            return self._staged_in(target, options)
        if self._outside == "send":
            return None
        if self._outside == "own":
            return self._staged_alone(options)
        raise StagingError(
            f"{name} is marked to be staged, and is sent outside a transaction: send it inside one, or set "
            "outbox_outside_transaction = 'own' (stage it in a transaction of its own) or 'send' (send it directly)"
        )

    def stages_now(self, name: str) -> bool:
        """Whether a task that is to be sent on commit is staged instead: marked, in an open transaction of Django's."""
        if self._session is not None or self._is_captured() or self._options_of(name) is None:
            return False
        return is_open(connection_of_alias(None))

    def _is_captured(self) -> bool:
        """Whether something hears the task already: an open capture counts more than a mark, in a rehearsal too."""
        return is_offline(self._app) or isinstance(innermost(self._app), (Capture, Direct))

    def _options_of(self, name: str) -> Options | None:
        """How a task is staged; None where it is not marked. A task's own word counts before ``outbox_tasks``."""
        if name in self._known:
            return self._known[name]
        task = self._app.tasks.get(name)
        mark = getattr(task, "outbox", None)
        if isinstance(mark, dict):
            options: Options | None = Options(**mark)
        elif mark is None:
            options = Options() if _matches(name, self._patterns) and not _matches(name, UNMARKED) else None
        else:
            options = Options() if mark else None
        if task is not None:  # else its module may still be imported, and have a word to say
            self._known[name] = options
        return options

    def _is_celerys_own(self, task_id: str | None) -> bool:
        """Whether a worker sends this by itself: the running task's retry, the next step of a chain, a link, a body.

        A continuation belongs to a task that has ended, whatever transaction that task may have left open.
        """
        task = self._app.current_worker_task
        if task is not None:
            if task.request.is_eager:
                return False
            if (task_id is not None and task.request.id == task_id) or task.name == UNLOCK:
                return True
        return _is_sent_by_worker()

    # -- the current transaction ------------------------------------------------------------------------------------

    def _current(self, name: str) -> Any:
        """The session or connection whose transaction is open now; None where none is."""
        if self._session is not None:
            return _open_session(self._session)
        try:
            connection = connection_of_alias(None)
        except StagingError as error:
            raise SettingsError(
                f"{name} is marked to be staged, and nothing tells which transaction is the current one: register your "
                f"sessions with Outbox(app, session=scoped_session(maker)), or use outbox.begin(maker); {error}"
            ) from error
        return connection if is_open(connection) else None

    @contextmanager
    def _staged_in(self, target: Any, options: Options) -> Iterator[None]:
        with capture(self._stager(), target, options):
            yield
        if isinstance(target, Session):
            watch_for_discard(target, self._events)

    @contextmanager
    def _staged_alone(self, options: Options) -> Iterator[None]:
        if self._session is None:
            from django.db import transaction  # noqa: PLC0415 - it is in use, or there would have been an error

            with transaction.atomic(), capture(self._stager(), None, options):
                yield
        else:
            stager = self._stager()
            own = Database(self._engine(), stager.tables)
            with own.begin() as connection, capture(stager, connection, options):
                yield


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_sent_by_worker() -> bool:
    """Whether Celery sends this between two tasks, and no code of the shop's does.

    What a worker calls first tells: a shop's result backend, or what instruments Celery, may stand further in.
    """
    inner, only_ours = sys._getframe(1), True
    while (outer := inner.f_back) is not None:
        module = str(inner.f_globals.get("__name__", ""))
        if module == "celery.app.task" and inner.f_code.co_name == "__call__":
            return False  # a task that is called in the worker, as some error callbacks are
        only_ours = only_ours and module.partition(".")[0] in OURS
        if outer.f_globals.get("__name__") in WORKER:
            return only_ours or isinstance(inner.f_locals.get("self"), SENDERS)
        inner = outer
    return False


def _open_session(registry: Callable[[], Any]) -> Any:
    """The current session of a registry where its transaction has begun; none is made to find out."""
    try:
        if isinstance(registry, scoped_session) and not registry.registry.has():
            return None
        session = registry()
    except RuntimeError:
        return None  # Flask's, outside an application context
    if isinstance(session, ASYNC_SQLALCHEMY):
        raise SettingsError("the registered session is async: marked tasks cannot await, so use outbox.begin(maker)")
    return session if session is not None and session.in_transaction() else None


def install(app: Celery, marked: Callable[[], Marked | None]) -> None:
    """Wrap the app's ``send_task``. ``marked`` is asked at each call; None: the outbox is switched off."""
    own = vars(app).get("send_task")  # somebody wrapped it before

    def behind() -> Any:
        """The class's own is looked up at each call: what instruments Celery later is to be heard."""
        return type(app).send_task.__get__(app) if own is None else own

    def wrapped(name: str, *args: Any, **options: Any) -> Any:
        tasks = marked()
        staging = None if tasks is None else tasks.staging(name, options.get("task_id"))
        if staging is None:
            return behind()(name, *args, **options)
        with staging:
            return behind()(name, *args, **options)

    wrapped.__outbox__ = behind  # type: ignore[attr-defined]  # templates ask what is behind it
    app.send_task = wrapped
    stage_on_commit_calls_of(app, lambda name: (tasks := marked()) is not None and tasks.stages_now(name))
