"""Rows of one task and one set of options differ in little: what Celery made of the first serves for the others.

Celery takes longer to build a message than PostgreSQL to store it, and builds nearly the same again for each call. A
template keeps the message that Celery built of a signature. A later signature with the same task and options is filled
in - id, arguments and their representations - where nothing but Celery's own code could have told the two apart: no
receiver of the publish signals, no override or router of the shop's, no running task, the same configuration. In every
other case Celery builds the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.app.routes import MapRoute
from celery.canvas import Signature
from celery.utils import uuid
from celery.utils.saferepr import saferepr
from kombu import Producer
from kombu.exceptions import EncodeError
from kombu.serialization import dumps

from outbox_relay.core.row import Message, NewRow
from outbox_relay.publish.fields import encode_fields
from outbox_relay.staging.rows import JSON, NO_LINKS, TYPED, content_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from outbox_relay.publish.recorder import Sent
    from outbox_relay.staging.options import Options

KEPT = 500  # templates of one outbox
LONG = 100  # characters of a task id, above which it is looked at with care
SIMPLE = frozenset({"priority", "queue", "serializer", "time_limit", "soft_time_limit", "ignore_result", "shadow"})
PLAIN = frozenset({str, int, bool, float})
QUIET = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
HEADERS = frozenset(
    {
        "lang",
        "task",
        "id",
        "shadow",
        "eta",
        "expires",
        "group",
        "group_index",
        "retries",
        "timelimit",
        "root_id",
        "parent_id",
        "argsrepr",
        "kwargsrepr",
        "origin",
        "ignore_result",
        "replaced_task_nesting",
        "stamped_headers",
        "stamps",
    }
)
BLANK = "\x01"  # stands where a value is filled in; Celery writes no such character itself
WRITTEN_BLANK = encode_basestring_ascii(BLANK)


@dataclass(frozen=True, slots=True)
class Form:
    """A JSON object with blanks."""

    pieces: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, fields: dict[str, Any], blanks: set[str]) -> Form:
        text = encode_fields({name: BLANK if name in blanks else value for name, value in fields.items()}).decode()
        return cls(tuple(text.split(WRITTEN_BLANK)), tuple(name for name in fields if name in blanks))

    def filled(self, values: dict[str, str]) -> bytes:
        parts = [self.pieces[0]]
        for name, piece in zip(self.names, self.pieces[1:], strict=True):
            parts += (encode_basestring_ascii(values[name]), piece)
        return "".join(parts).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What Celery made of one signature."""

    row: NewRow
    headers: Form
    properties: Form
    queue: Any
    exec_options: Any
    check_arguments: Callable[..., Any] | None
    no_links: dict[str, None]
    serializer: str | None
    repr_options: tuple[tuple[Any, int], tuple[Any, int]]
    digest: Any

    def fill(
        self, signature: Signature, options: Options, ordinal: int | None, *, most: int, reply_to: str
    ) -> NewRow | None:
        """Return the row of another signature; None where Celery had better build it, or refuse it.

        ``most`` is how many bytes a body may have, and ``reply_to`` Celery's name for this thread.

        Raises:
            TypeError: the arguments do not fit the task (Celery's own check).
        """
        args, kwargs = signature["args"] or (), signature["kwargs"] or {}
        if self.check_arguments is not None:
            self.check_arguments(*args, **kwargs)
        task_id = signature["options"].get("task_id") or uuid()
        if len(kwargs) > 1 and list(kwargs) != sorted(kwargs):
            return None
        try:
            body = dumps((args, kwargs, self.no_links), serializer=self.serializer)[2].encode()
        except (EncodeError, UnicodeEncodeError):
            return None
        if TYPED in body or len(body) > most or not body.endswith(NO_LINKS):
            return None
        (args_size, levels), (kwargs_size, _) = self.repr_options
        values = {
            "id": task_id,
            "root_id": task_id,
            "correlation_id": task_id,
            "reply_to": reply_to,
            "argsrepr": saferepr(args, args_size, levels),
            "kwargsrepr": saferepr(kwargs, kwargs_size, levels) if kwargs else "{}",
        }
        digest = self.digest.copy()
        digest.update(body[: -len(NO_LINKS)])
        first, message = self.row, self.row.message
        return NewRow(
            namespace=first.namespace,
            dispatch_key=options.key_of(task_id, ordinal),
            content_hash=digest.digest(),
            message=Message(
                task=message.task,
                task_id=task_id,
                task_queue=message.task_queue,
                exchange=message.exchange,
                routing_key=message.routing_key,
                body=body,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                headers=self.headers.filled(values),
                properties=self.properties.filled(values),
            ),
            workflow_id=options.workflow_id,
            run_id=options.run_id,
            ordinal=ordinal,
            node=options.node,
            max_attempts=options.max_attempts,
            settle_on=options.settle_on,
        )


class Templates:
    """The templates of one outbox in one process."""

    def __init__(self, app: Celery, max_body_bytes: int) -> None:
        self._app = app
        self._most = max_body_bytes
        self._known: dict[tuple[Any, ...], Template] = {}
        self._conf: dict[str, Any] = {}

    def key(self, signature: Signature, options: Options) -> tuple[Any, ...] | None:
        """Return what two signatures must have in common, or None where this one is out of the ordinary."""
        if type(signature) is not Signature or signature["subtask_type"] or any(one.receivers for one in QUIET):
            return None
        app: Any = self._app
        task = app.tasks.get(signature["task"])
        if task is None or app.current_worker_task is not None or not _is_stock(app, task):
            return None
        simple = []
        for name, value in signature["options"].items():
            if name == "task_id":
                if type(value) is not str or len(value) > LONG or not value.isascii() or not value.isprintable():
                    return None
            elif name not in SIMPLE or type(value) not in PLAIN:
                return None
            else:
                simple.append((name, value))
        place = (options.namespace, options.node, options.task_queue)
        return (task.name, task.ignore_result, place, *simple)

    def row(
        self, key: tuple[Any, ...] | None, signature: Signature, options: Options, ordinal: int | None
    ) -> NewRow | None:
        """Return the row of a signature, or None where Celery has to build its message."""
        template = None if key is None else self._known.get(key)
        if template is None:
            return None
        app: Any = self._app
        if _changes(app) != self._conf:
            self._known.clear()
            return None
        same_queue = app.amqp.queues.get(template.queue.name) is template.queue
        if not same_queue or app.tasks[template.row.message.task]._exec_options is not template.exec_options:
            return None
        return template.fill(signature, options, ordinal, most=self._most, reply_to=app.thread_oid)

    def learn(self, key: tuple[Any, ...] | None, signature: Signature, sent: Sent, row: NewRow) -> None:
        """Keep what Celery made of a signature, where all that is in it is understood."""
        if key is None:
            return
        changes = _changes(self._app)
        if changes is None:
            return
        if changes != self._conf or len(self._known) >= KEPT:
            self._known.clear()
            self._conf = dict(changes)
        if (template := _template(self._app, signature, sent, row)) is not None:
            self._known[key] = template


def _changes(app: Any) -> dict[str, Any] | None:
    """The part of the configuration that can still change: what is set on ``app.conf`` itself."""
    maps = getattr(app.conf, "maps", None)
    return maps[0] if maps and type(maps[0]) is dict else None


def _template(app: Any, signature: Signature, sent: Sent, row: NewRow) -> Template | None:
    headers, properties, content = sent.headers, sent.properties, sent.content
    if not (isinstance(content, tuple) and len(content) == 3 and sent.content_type == JSON and sent.queue is not None):
        return None
    args, kwargs, links = content
    own_arguments = args is signature["args"] or not (args or signature["args"])
    levels = getattr(app.conf, "task_repr_maxlevels", 3)
    sizes = (app.amqp.argsrepr_maxsize, app.amqp.kwargsrepr_maxsize)
    task = app.tasks[sent.task]
    understood = (
        own_arguments
        and sent.body is sent.plain
        and sent.plain.endswith(NO_LINKS)
        and sent.countdown is None
        and HEADERS.issuperset(headers)
        and headers["id"] == headers["root_id"] == properties.get("correlation_id") == sent.task_id
        and properties.get("reply_to") == app.thread_oid
        and headers["argsrepr"] == saferepr(args, sizes[0], levels)
        and headers["kwargsrepr"] == saferepr(kwargs, sizes[1], levels)
        and not any(headers.get(name) for name in ("eta", "expires", "parent_id", "group", "retries", "stamps"))
        and getattr(task, "_dump_pydantic_arguments", None) is None
    )
    if not understood:
        return None
    message = row.message
    route = (message.task_queue, row.node or "", message.exchange, message.routing_key)
    return Template(
        row=row,
        headers=Form.of(headers, {"id", "root_id", "argsrepr", "kwargsrepr"}),
        properties=Form.of(properties, {"correlation_id", "reply_to"}),
        queue=sent.queue,
        exec_options=task._exec_options,
        check_arguments=getattr(task, "__header__", None) if task.typing else None,
        no_links=links,
        serializer=sent.serializer,
        repr_options=((sizes[0], levels), (sizes[1], levels)),
        digest=content_digest(sent.task, route),
    )


def _is_stock(app: Any, task: Any) -> bool:
    """Whether only Celery's and kombu's own code takes part in sending this task."""
    return (
        _is_of(task.apply_async, "celery.app.task")
        and _is_of(task.shadow_name, "celery.app.task")
        and _is_of(app.send_task, "celery.app.base")
        and _is_of(app.amqp.as_task_v2, "celery.app.amqp")
        and type(Producer.publish) is FunctionType
        and Producer.publish.__globals__["__name__"] == "kombu.messaging"
        and all(type(route) is MapRoute for route in app.amqp.router.routes)
    )


def _is_of(method: Any, module: str) -> bool:
    """Whether a method is defined in a module: a wrapper has other globals, or is no function at all."""
    if type(method) is not MethodType or type(method.__func__) is not FunctionType:
        return False
    return bool(method.__func__.__globals__["__name__"] == module)
