"""What a consumer does with messages before a task runs: a row's message never disappears there without a report.

A message that would take a stock worker down (and then the next one, for the broker hands it on) is rejected here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from kombu.utils.encoding import safe_repr

from outbox_relay.worker import outcomes
from outbox_relay.worker.requests import adopt, keep_awake
from outbox_relay.worker.retries import carry_riders

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_relay.worker.desk import Desk

logger = get_logger(__name__)


def attend(consumer: Any, desk: Desk) -> None:
    """Wrap what a consumer calls for a message, from its receipt to its task; done anew for each consumer."""
    _attend_strategies(consumer, desk)
    _attend_refusals(consumer, desk)
    _attend_receipt(consumer, desk)


def _attend_strategies(consumer: Any, desk: Desk) -> None:
    """Strategies and tracers are made anew at each connection; ours have to be in place each time."""
    inner, known = consumer.update_strategies, dict[Any, Any]()

    def update_strategies() -> None:
        tasks = consumer.app.tasks
        for task in tasks.values():
            adopt(task, desk, known)
        inner()
        for task in tasks.values():
            carry_riders(task, consumer.app)

    consumer.update_strategies = update_strategies


def _attend_refusals(consumer: Any, desk: Desk) -> None:
    """The four ways in which a consumer turns a message away."""

    def after(inner: Callable[..., Any], decide: Callable[..., Any], *about: Any) -> Callable[..., Any]:
        def refuse(body: Any, message: Any, error: Any = None) -> Any:
            try:
                return inner(body, message, error) if error is not None else inner(body, message)
            finally:
                desk.end_unrun(message, decide, error or InvalidTaskError("unknown message format"), *about)

        return refuse

    consumer.on_unknown_task = after(consumer.on_unknown_task, outcomes.of_unknown)
    consumer.on_unknown_message = after(consumer.on_unknown_message, outcomes.of_invalid, desk.retry_for)
    consumer.on_invalid_task = after(consumer.on_invalid_task, outcomes.of_invalid, desk.retry_for)
    undecodable = consumer.on_decode_error

    def on_decode_error(message: Any, error: Any) -> Any:
        try:
            return undecodable(message, error)
        finally:
            desk.end_unrun(message, outcomes.of_invalid, error, desk.retry_for)

    consumer.on_decode_error = on_decode_error


def _attend_receipt(consumer: Any, desk: Desk) -> None:
    """What the consumer does not expect to go wrong: no id, a body of another shape, a name that is no name."""
    make_handler = consumer.create_task_handler
    errors = (*consumer.connection_errors, *consumer.channel_errors)
    # kombu counts KeyError among Redis's connection errors: to a poison message the worker would reconnect, for ever.
    broker_errors = tuple(kind for kind in errors if not issubclass(kind, LookupError))

    def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        inner = make_handler(*args, **kwargs)

        def soon(what: Callable[..., Any], *about: Any) -> None:
            consumer.call_soon(what, *about)
            keep_awake()

        def refuse(message: Any) -> None:
            if not message.acknowledged:
                message.reject_log_error(logger, consumer.connection_errors)

        def on_task_received(message: Any) -> Any:
            try:
                return inner(message)
            except (MemoryError, *broker_errors):
                raise
            except Exception as error:
                logger.critical("A message was refused: %r; headers: %s", error, safe_repr(message.headers), exc_info=1)
                soon(soon, refuse, message)  # after an acknowledgement that is on its way: they come in any order
                desk.end_unrun(message, outcomes.of_invalid, error, desk.retry_for)
                return None

        return on_task_received

    consumer.create_task_handler = create_task_handler
