"""Signatures staged one by one or in bulk, in the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from celery.canvas import Signature, chord, chunks, group
from kombu.exceptions import KombuError

from outbox_relay.errors import OutboxError, StagingError
from outbox_relay.publish.capture import Sending, Sent, diverted
from outbox_relay.staging.bulk import stage_pages
from outbox_relay.staging.connections import accept, enter
from outbox_relay.staging.rows import new_row
from outbox_relay.staging.templates import Filler, Templates
from outbox_relay.staging.transaction import watch_sessions
from outbox_relay.store.staging import insert_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery import Celery

    from outbox_relay.core.row import NewRow, Staged
    from outbox_relay.settings import Settings
    from outbox_relay.staging.options import Options
    from outbox_relay.store.schema import Tables
    from outbox_relay.store.wake import WakeThrottle


class Stager:
    """Stages for one outbox: the app builds the messages, the caller's connection takes the rows.

    ``capturing`` makes the sink of a capture where it is not the usual one, and ``acapturing`` that of an async one.
    """

    capturing: ClassVar[Callable[..., Any] | None] = None
    acapturing: ClassVar[Callable[..., Any] | None] = None

    def __init__(self, app: Celery, settings: Settings, tables: Tables, throttle: WakeThrottle) -> None:
        self.app = app
        self._settings = settings
        self.tables = tables
        self._throttle = throttle
        self._templates = Templates(app, settings.max_body_bytes)
        watch_sessions()

    def stage(self, given: Any, signature: Any, options: Options, bind: Any = None) -> Staged:
        """Stage one signature. See :meth:`outbox_relay.Outbox.stage`."""
        target = accept(given)
        return self.insert(target, self.rows_of_one(signature, options), bind)[0]

    def stage_many(self, given: Any, signatures: Iterable[Any], options: Options, bind: Any = None) -> list[Staged]:
        """Stage many signatures with few statements. See :meth:`outbox_relay.Outbox.stage_many`."""
        return stage_pages(self, accept(given), signatures, options, bind)

    def rows_of_one(self, signature: Any, options: Options) -> list[NewRow]:
        """Make the row of a signature; nothing is written yet.

        Raises:
            StagingError: it cannot be staged, or sends several messages, or none.
        """
        one = self.signature(signature)
        if several := _kind_of_several(one):
            raise StagingError(
                f"this signature is more than one message ({several}): give all of it to stage_many, or send it inside "
                "`with outbox.capture(...)`"
            )
        if not (rows := self.rows(one, options, options.ordinal, self.filler(options))):
            raise StagingError(f"{one!r} sends no message: there is nothing to stage")
        return rows

    def insert(self, target: Any, rows: Sequence[NewRow], bind: Any, *, sort: bool = True) -> list[Staged]:
        """Insert rows where the caller's transaction is, waking the relay where that is allowed and not too often."""
        place = enter(target, bind)
        # A notification makes PostgreSQL refuse to prepare the transaction.
        wake = self._settings.wake == "notify" and not place.two_phase and self._throttle.allow()
        is_open = self._settings.namespaces == "open"
        return insert_rows(place.connection, self.tables, rows, wake=wake, open_namespaces=is_open, sort=sort)

    def send_too(self, signatures: Sequence[Any], staged: Sequence[Staged], options: Options) -> None:
        """A rehearsal sends directly what was staged by await; here it is not sent."""

    def row_of(self, sent: Sent, options: Options, ordinal: int | None) -> NewRow:
        """Make the row of a message that Celery has finished."""
        return new_row(sent, options, self._settings, self.app, ordinal=ordinal)

    def signature(self, given: Any) -> Signature:
        """Bind a signature to the outbox's app.

        Raises:
            StagingError: it is something else, or belongs to another app.
        """
        if type(given) is Signature and given._app is self.app and not given["subtask_type"]:
            return given  # what task.s(...) makes
        if not isinstance(given, dict):
            hint = ": write task.s(...)" if hasattr(given, "apply_async") else ", not a signature: write task.s(...)"
            raise StagingError(f"cannot stage {given!r}{hint}")
        if "task" not in given:
            raise StagingError(f"cannot stage {given!r}: it is not a signature")
        for part in _parts(given):
            app = getattr(part, "_app", None)
            if app is not None and app is not self.app and app.main != self.app.main:
                raise StagingError(f"{part['task']} belongs to another app, {app!r}, which has its own broker")
        if getattr(given, "_app", None) is not None:
            return given
        try:
            bound: Signature = Signature.from_dict(dict(given), app=self.app)
        except (KeyError, TypeError) as error:
            raise StagingError(f"cannot stage {given!r}: it is not a signature ({error!r})") from error
        return bound

    def filler(self, options: Options) -> Filler:
        """Return what :meth:`rows` needs, for one call or one page of it."""
        return self._templates.filler(options)

    @staticmethod
    def names_ids(signature: Signature) -> bool:
        """Whether a signature, or a part of it, brings the id of its task."""
        if not signature["subtask_type"]:
            return bool(signature["options"].get("task_id"))
        return any(part["options"].get("task_id") for part in _parts(signature))

    def rows(self, signature: Signature, options: Options, ordinal: int | None, filler: Filler) -> list[NewRow]:
        """Make the rows of what a signature sends: one, or, of a canvas, several with ordinals from ``ordinal``."""
        key = filler.key(signature)
        if (row := filler.row(key, signature, ordinal)) is not None:
            return [row]
        sents = self._build(signature, options)
        rows = [
            self.row_of(sent, options, None if ordinal is None else ordinal + place) for place, sent in enumerate(sents)
        ]
        if len(rows) == 1:
            self._templates.learn(key, signature, sents[0], rows[0])
        return rows

    def _build(self, signature: Signature, options: Options) -> list[Sent]:
        """Let Celery build the messages, and keep them.

        Raises:
            StagingError: Celery finds that it cannot.
        """
        refuse_eager(self.app)
        collector = Collector(self.app)
        routed = {} if options.task_queue is None else {"queue": options.task_queue}
        try:
            with diverted(collector):
                signature.apply_async(**routed)
        except OutboxError:
            raise
        except NotImplementedError as error:  # Celery's word for a backend that cannot join a chord
            why = str(error).partition("\n")[0]
            raise StagingError(
                f"{signature['task']}: {why} Set result_backend to one that joins chords (a group with a step after it "
                "is a chord too), or stage the steps one by one"
            ) from error
        except (ArithmeticError, LookupError, ValueError, KombuError) as error:  # a compression that there is not, say
            said = f"{type(error).__name__}: {error}"
            raise StagingError(f"{signature['task']}: Celery cannot make its message: {said}") from error
        return collector.sents


class Collector:
    """A sink that keeps every message that it sees."""

    offline = True
    tees = False

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.sents: list[Sent] = []

    def wants(self, sending: Sending) -> bool:
        refuse_broadcast(sending)
        return True

    def take(self, sent: Sent) -> None:
        self.sents.append(sent)


def refuse_eager(app: Celery) -> None:
    """Refuse where Celery would run the task at once instead of sending it.

    Raises:
        StagingError: ``task_always_eager`` is set.
    """
    if app.conf.task_always_eager:
        raise StagingError(
            "task_always_eager makes Celery run tasks at once, so that there is nothing to stage: set it to False"
        )


def refuse_broadcast(sending: Sending) -> None:
    """Refuse a task for every worker at once: one row has one outcome.

    Raises:
        StagingError: the message goes to a ``Broadcast`` queue.
    """
    if sending.is_broadcast:
        raise StagingError(f"{sending.name} goes to a Broadcast queue: one row cannot have an outcome from each worker")


def _kind_of_several(signature: Signature) -> str | None:
    """Name the kind of a signature that may send more than one message."""
    for kind in (group, chord, chunks):
        if isinstance(signature, kind):
            return str(kind.__name__).strip("_")
    first = (signature.get("kwargs") or {}).get("tasks") if signature.get("subtask_type") == "chain" else None
    if first:
        inner = _kind_of_several(first[0])
        return inner and f"chain that starts with a {inner}"
    return None


def _parts(signature: Any) -> Iterable[Signature]:
    """A signature, and what it is made of."""
    yield signature
    if signature.get("subtask_type"):
        kwargs = signature.get("kwargs") or {}
        for part in (*(kwargs.get("tasks") or ()), *(kwargs.get("header") or ()), kwargs.get("body")):
            if isinstance(part, Signature):
                yield from _parts(part)
