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

from sqlalchemy.orm import Session, scoped_session

from outbox_relay.errors import SettingsError, StagingError
from outbox_relay.publish.capture import is_offline
from outbox_relay.staging.capture import capture
from outbox_relay.staging.connections import ASYNC_SQLALCHEMY
from outbox_relay.staging.discarded import watch_for_discard
from outbox_relay.staging.django import connection_of_alias, is_open
from outbox_relay.staging.on_commit import stage_on_commit_calls_of
from outbox_relay.staging.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery
    from sqlalchemy import Engine

    from outbox_relay.events import Events
    from outbox_relay.settings import Settings
    from outbox_relay.staging.stage import Stager

OURS = frozenset({"celery", "kombu", "outbox_relay", "vine", "billiard"})
TRACER = "celery.app.trace"


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
        if options is None or is_offline(self._app) or self._is_celerys_own(task_id):
            return None
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
        if self._session is not None or is_offline(self._app) or self._options_of(name) is None:
            return False
        return is_open(connection_of_alias(None))

    def _options_of(self, name: str) -> Options | None:
        """How a task is staged; None where it is not marked. A task's own word counts before ``outbox_tasks``."""
        if name not in self._known:
            mark = getattr(self._app.tasks.get(name), "outbox", None)
            if isinstance(mark, dict):
                self._known[name] = Options(**mark)
            elif mark is None:
                matches = any(fnmatchcase(name, pattern) for pattern in self._patterns)
                self._known[name] = Options() if matches else None
            else:
                self._known[name] = Options() if mark else None
        return self._known[name]

    def _is_celerys_own(self, task_id: str | None) -> bool:
        """Whether a worker sends this by itself: the running task's retry, the next step of a chain, a link, a body.

        A continuation belongs to a task that has ended, whatever transaction that task may have left open.
        """
        task = self._app.current_worker_task
        if task is None or task.request.is_eager:
            return False
        if task_id is not None and task.request.id == task_id:
            return True
        frame = sys._getframe(1)
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if module == TRACER:
                return True
            if module.partition(".")[0] not in OURS:
                return False
            frame = frame.f_back  # type: ignore[assignment]
        return False

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
            with self._engine().begin() as connection, capture(self._stager(), connection, options):
                yield


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
