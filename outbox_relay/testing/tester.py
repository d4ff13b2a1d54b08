"""Questions that a test asks of its outbox."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.compression import decompress
from kombu.serialization import dumps, loads, prepare_accept_content
from kombu.utils.json import loads as load_json

from outbox_relay.store.inprocess import InProcess
from outbox_relay.testing.borrow import borrow
from outbox_relay.testing.drain import Drain, Ran

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from outbox_relay.outbox import Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTask:
    """A row, as a test sees it. ``args`` and ``kwargs`` are what the worker will be given."""

    row_id: int
    task: str
    task_id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    namespace: str
    task_queue: str
    node: str | None
    workflow_id: str | None
    dispatch_key: str
    status: str
    visible_after: datetime
    headers: dict[str, Any]


class Tester:
    """What was staged on one connection, and a way to run it.

    ``connection`` is what the test stages on: its transaction is looked at and written to, and never ended.
    """

    __test__ = False  # it is no test, whatever pytest makes of its name

    def __init__(self, outbox: Outbox, connection: Any = None) -> None:
        self.outbox = outbox
        self._connection = connection

    def staged(self, task: Any = None, *, connection: Any = None, **columns: Any) -> list[StagedTask]:
        """Return the rows that are pending, in the order of staging.

        ``task`` is a task or its name; ``columns`` are fields of :class:`StagedTask` with the value that they must have
        (``namespace="acme"``; ``status=None`` for rows in every state).
        """
        wanted = {"status": "pending", **columns}
        if task is not None:
            wanted["task"] = _name(task)
        wanted = {name: value for name, value in wanted.items() if (name, value) != ("status", None)}
        return [
            one for one in self._all(connection) if all(getattr(one, name) == value for name, value in wanted.items())
        ]

    def assert_staged(
        self,
        task: Any,
        *,
        args: Any = None,
        kwargs: Any = None,
        times: int | None = None,
        connection: Any = None,
        **columns: Any,
    ) -> StagedTask:
        """Assert that a task is staged, with these arguments where they are given, and return the first such row.

        Arguments are compared as the worker will see them: after the serializer, a tuple is a list. ``times`` says how
        often exactly it is staged; without it, once or more.

        Raises:
            AssertionError: it is not; the message lists what is staged.
        """
        rows = self.staged(None, connection=connection, **columns)
        found = [one for one in rows if one.task == _name(task) and self._matches(one, args, kwargs)]
        if not found or (times is not None and len(found) != times):
            often = "" if times is None else f" {times} times, but {len(found)}"
            asked = "" if args is None and kwargs is None else f" with args={args!r} kwargs={kwargs!r}"
            raise AssertionError(f"{_name(task)}{asked} is not staged{often}; staged are:{_listed(rows) or ' none'}")
        return found[0]

    def assert_nothing_staged(self, task: Any = None, *, connection: Any = None, **columns: Any) -> None:
        """Assert that nothing, or no such task, is staged.

        Raises:
            AssertionError: something is.
        """
        if rows := self.staged(task, connection=connection, **columns):
            raise AssertionError(f"{len(rows)} tasks are staged:{_listed(rows)}")

    def drain(self, *, delayed: bool = False, raises: bool = True, connection: Any = None) -> list[Ran]:
        """Run what is staged and due, in this process and this transaction, until nothing is left; return every run.

        The tasks run through Celery's own tracer, with the message that a worker would have received, and their rows
        are settled by a relay's rules. What tasks stage on the same connection is run too, and so is what they send
        (links, chains, plain ``delay``): nothing reaches a broker. ``delayed`` runs rows whose time has not come,
        retries among them. With ``raises``, the exception of a task that fails is raised once its row is settled.

        Raises:
            Exception: what a task raised.
        """
        with self._rows(connection) as rows:
            return Drain(self.outbox, rows, delayed=delayed, raises=raises).run()

    def _all(self, connection: Any) -> list[StagedTask]:
        with self._rows(connection) as rows:
            return [_staged(one, self.outbox.app.conf.accept_content) for one in rows.staged()]

    @contextmanager
    def _rows(self, connection: Any) -> Iterator[InProcess]:
        self.outbox.require_enabled()
        yield InProcess(borrow(self._connection if connection is None else connection), self.outbox.tables)

    def _matches(self, row: StagedTask, args: Any, kwargs: Any) -> bool:
        return (args is None or list(row.args) == self._carried(list(args))) and (
            kwargs is None or row.kwargs == self._carried(dict(kwargs))
        )

    def _carried(self, value: Any) -> Any:
        """A value as it comes out at the other end of the app's serializer."""
        content_type, encoding, body = dumps(value, serializer=self.outbox.app.conf.task_serializer)
        return loads(body, content_type, encoding, accept=prepare_accept_content([content_type]))


def _name(task: Any) -> str:
    return task if isinstance(task, str) else str(task.name)


def _listed(rows: list[StagedTask]) -> str:
    return "".join(f"\n  {one.task} args={one.args!r} kwargs={one.kwargs!r} ({one.namespace})" for one in rows)


def _staged(row: Any, accept: Any) -> StagedTask:
    named = {name: row[name] for name in StagedTask.__dataclass_fields__ if name in row}
    if not row["content_type"]:  # plain SQL inserted it, and no relay has made its message
        plain = {"args": tuple(_json(row["args"], [])), "kwargs": dict(_json(row["kwargs"], {})), "headers": {}}
        return StagedTask(row_id=row["id"], **{**named, **plain})
    headers = load_json(row["headers"])
    body = bytes(row["body"])
    if compression := headers.get("compression"):
        body = decompress(body, compression)
    content = loads(body, row["content_type"], row["content_encoding"], accept=prepare_accept_content(accept))
    if isinstance(content, dict):  # Celery's first protocol
        args, kwargs = content.get("args") or (), content.get("kwargs") or {}
    else:
        args, kwargs = content[0], content[1]
    return StagedTask(row_id=row["id"], **{**named, "args": tuple(args), "kwargs": dict(kwargs), "headers": headers})


def _json(text: str | None, default: Any) -> Any:
    """What plain SQL wrote; what a relay would refuse is shown as nothing."""
    try:
        value = default if text is None else load_json(text)
    except ValueError:
        return default
    return value if isinstance(value, type(default)) else default
