"""Rows of one task and one set of options differ in little: what Celery made of the first serves for the others.

Celery takes longer to build a message than PostgreSQL to store it, and builds nearly the same again for each call. A
template keeps the message that Celery built of a signature. A later signature with the same task and options is filled
in - id, arguments and their representations - where nothing but Celery's own code could have told the two apart: no
receiver of the publish signals, no override or router of the shop's, no running task, the same configuration. In every
other case Celery builds the message.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import signals
from celery.app.routes import MapRoute
from celery.canvas import Signature
from celery.utils import uuid
from celery.utils.saferepr import saferepr
from kombu import Producer

from outbox_relay.core.row import Common, NewRow
from outbox_relay.staging.fillings import Form, json_body, represented
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
TYPED_TEXT = TYPED.decode()
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
Key = tuple[Any, ...]


class Template(NamedTuple):
    """What Celery made of one signature."""

    common: Common
    headers: Form
    properties: Form
    queue: Any
    exec_options: Any
    check_arguments: Callable[..., Any] | None
    serializer: str | None
    repr_options: tuple[tuple[Any, Any], tuple[Any, Any]]
    digest: Any


class Templates:
    """The templates of one outbox in one process."""

    def __init__(self, app: Celery, max_body_bytes: int) -> None:
        self.app: Any = app
        self.most = max_body_bytes
        self.known: dict[Key, Template] = {}
        self._conf: dict[str, Any] = {}

    def filler(self, options: Options) -> Filler:
        """Return what fills in rows with these options, for as long as nothing can have changed."""
        if self.known and _changes(self.app) != self._conf:
            self.known.clear()
        return Filler(self, options)

    def learn(self, key: Key | None, signature: Signature, sent: Sent, row: NewRow) -> None:
        """Keep what Celery made of a signature, where all that is in it is understood."""
        if key is None:
            return
        changes = _changes(self.app)
        if changes is None:
            return
        if changes != self._conf or len(self.known) >= KEPT:
            self.known.clear()
            self._conf = dict(changes)
        if (template := _template(self.app, signature, sent, row)) is not None:
            self.known[key] = template


class Filler:
    """Fills in rows of one set of options.

    What tells whether a template may be used - signals, overrides, configuration - is looked at once. So a filler
    serves for one call, or for one page of a long one.
    """

    def __init__(self, templates: Templates, options: Options) -> None:
        app = templates.app
        self._templates = templates
        self._options = options
        self._quiet = not any(one.receivers for one in QUIET) and app.current_worker_task is None
        self._tasks = app.tasks
        self._stock: dict[str, Any] = {}
        self._usable: dict[Key, tuple[Template, Common] | None] = {}
        self._place = (options.namespace, options.node, options.task_queue)
        self._reply_to = encode_basestring_ascii(app.thread_oid)

    def key(self, signature: Signature) -> Key | None:
        """Return what two signatures must have in common, or None where this one is out of the ordinary."""
        if type(signature) is not Signature or not self._quiet or signature["subtask_type"]:
            return None
        name = signature["task"]
        task = self._stock.get(name)
        if task is None:
            task = self._tasks.get(name)
            if task is None or not _is_stock(self._templates.app, task):
                return None
            self._stock[name] = task
        given = signature["options"]
        if not given:
            return (name, task.ignore_result, self._place)
        simple = []
        for option, value in given.items():
            if option == "task_id":
                if type(value) is not str or len(value) > LONG or not value.isascii() or not value.isprintable():
                    return None
            elif option not in SIMPLE or type(value) not in PLAIN:
                return None
            else:
                simple.append((option, value))
        return (name, task.ignore_result, self._place, *simple)

    def row(self, key: Key | None, signature: Signature, ordinal: int | None) -> NewRow | None:
        """Return the row of a signature; None where Celery has to build its message, or had better refuse it.

        Raises:
            TypeError: the arguments do not fit the task (Celery's own check).
        """
        if key is None:
            return None
        usable = self._usable[key] if key in self._usable else self._look_up(key)
        return None if usable is None else self._filled(*usable, signature, ordinal)

    def _look_up(self, key: Key) -> tuple[Template, Common] | None:
        """The template of a key, where the app's queue and the task's options are still those that it was made with."""
        template = self._templates.known.get(key)
        if template is None:
            return None  # Celery builds the first one, and the next may find what was learnt of it
        queues, common = self._templates.app.amqp.queues, template.common
        same_queue = queues.get(template.queue.name) is template.queue
        if not same_queue or self._tasks[common.task]._exec_options is not template.exec_options:
            self._usable[key] = None
            return None
        own = self._options
        if own.workflow_id or own.max_attempts or own.settle_on:
            common = common._replace(
                workflow_id=own.workflow_id,
                run_id=own.run_id,
                max_attempts=own.max_attempts,
                settle_on=own.settle_on,
            )
        usable = (template, common)
        self._usable[key] = usable
        return usable

    def _filled(self, template: Template, common: Common, signature: Signature, ordinal: int | None) -> NewRow | None:
        args, kwargs = signature["args"] or (), signature["kwargs"] or {}
        if template.check_arguments is not None:
            template.check_arguments(*args, **kwargs)
        if len(kwargs) > 1 and list(kwargs) != sorted(kwargs):
            return None
        try:
            text = json_body(args, kwargs, template.serializer)
        except Exception:  # noqa: BLE001 - nothing is lost:
            return None  # Celery meets it again, and says what is wrong
        if text is None or TYPED_TEXT in text or len(body := text.encode()) > self._templates.most:
            return None
        task_id = signature["options"].get("task_id") or uuid()
        written_id = encode_basestring_ascii(task_id)
        (args_size, levels), (kwargs_size, _) = template.repr_options
        values = {
            "id": written_id,
            "root_id": written_id,
            "correlation_id": written_id,
            "reply_to": self._reply_to,
            "argsrepr": encode_basestring_ascii(represented(args, args_size, levels)),
            "kwargsrepr": encode_basestring_ascii(represented(kwargs, kwargs_size, levels)) if kwargs else '"{}"',
        }
        digest = template.digest.copy()
        digest.update(body[: -len(NO_LINKS)])
        return NewRow(
            common,
            self._options.key_of(task_id, ordinal),
            digest.digest(),
            task_id,
            body,
            template.headers.filled(values),
            template.properties.filled(values),
            ordinal,
        )


def _changes(app: Any) -> dict[str, Any] | None:
    """The part of the configuration that can still change: what is set on ``app.conf`` itself."""
    maps = getattr(app.conf, "maps", None)
    return maps[0] if maps and type(maps[0]) is dict else None


def _template(app: Any, signature: Signature, sent: Sent, row: NewRow) -> Template | None:
    headers, properties, content = sent.headers, sent.properties, sent.content
    if not (isinstance(content, tuple) and len(content) == 3 and sent.content_type == JSON and sent.queue is not None):
        return None
    args, kwargs, _ = content
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
        and not row.common.retries
    )
    if not understood:
        return None
    common = row.common
    route = (common.task_queue, common.node or "", common.exchange, common.routing_key)
    return Template(
        common=common._replace(workflow_id=None, run_id=None, max_attempts=None, settle_on=None),
        headers=Form.of(headers, {"id", "root_id", "argsrepr", "kwargsrepr"}),
        properties=Form.of(properties, {"correlation_id", "reply_to"}),
        queue=sent.queue,
        exec_options=task._exec_options,
        check_arguments=getattr(task, "__header__", None) if task.typing else None,
        serializer=sent.serializer,
        repr_options=((sizes[0], levels), (sizes[1], levels)),
        digest=content_digest(sent.task, route),
    )


def _is_stock(app: Any, task: Any) -> bool:
    """Whether only Celery's and kombu's own code takes part in sending this task."""
    amqp = app.amqp
    return (
        _is_of(task.apply_async, "celery.app.task")
        and _is_of(task.shadow_name, "celery.app.task")
        and _is_of(_behind_ours(app.send_task), "celery.app.base")
        and _is_of(amqp.as_task_v2, "celery.app.amqp")
        and type(Producer.publish) is FunctionType
        and Producer.publish.__globals__["__name__"] == "kombu.messaging"
        and all(type(route) is MapRoute for route in amqp.router.routes)
    )


def _behind_ours(send_task: Any) -> Any:
    """What the outbox's own wrapper calls. Another's may carry the mark of ours, as ``functools.wraps`` copies it."""
    if type(send_task) is FunctionType and send_task.__globals__["__name__"] == "outbox_relay.staging.marked":
        return send_task.__outbox__()  # type: ignore[attr-defined]
    return send_task


def _is_of(method: Any, module: str) -> bool:
    """Whether a method is defined in a module: a wrapper has other globals, or is no function at all."""
    if type(method) is not MethodType or type(method.__func__) is not FunctionType:
        return False
    return bool(method.__func__.__globals__["__name__"] == module)
