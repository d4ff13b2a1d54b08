"""Rows run in this process, through Celery's own tracer, and settled by a relay's own rules."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery import states
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from outbox_relay.core.settlement import Delivery, Settlement
from outbox_relay.errors import AlreadyDone, PublishError, RunAgain
from outbox_relay.publish.capture import Sending, Sent, diverted
from outbox_relay.publish.envelope import outgoing
from outbox_relay.publish.fields import encode_fields
from outbox_relay.publish.plain import is_plain, message_of
from outbox_relay.worker.outcomes import describe, lineage_of, matches, names_of
from outbox_relay.worker.retries import RetrySink, to_retried

if TYPE_CHECKING:
    from outbox_relay.core.row import ClaimedRow
    from outbox_relay.outbox import Outbox
    from outbox_relay.publish.envelope import Outgoing
    from outbox_relay.store.inprocess import InProcess

HOSTNAME = "outbox@test"
NOBODY = UUID(int=0)
MANY = 10_000  # runs in one drain: more of them is a task that stages itself for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of one task. ``outcome`` is what a worker would have reported: done, failed, again, retry or cancelled.

    ``row_id`` is None for what a task sent past the outbox: a link, the next step of a chain, a plain ``delay``.
    """

    row_id: int | None
    task: str
    task_id: str
    outcome: str
    result: Any = None
    error: BaseException | None = None


class _Sent:
    """Keeps what tasks send past the outbox, to be run after them."""

    offline = True
    tees = False

    def __init__(self, outbox: Outbox) -> None:
        self.app = outbox.app
        self.messages: deque[Sent] = deque()

    def wants(self, sending: Sending) -> bool:
        return True

    def take(self, sent: Sent) -> None:
        self.messages.append(sent)


class Drain:
    """Runs rows until none is left. See :meth:`outbox_relay.testing.Tester.drain`."""

    def __init__(self, outbox: Outbox, rows: InProcess, *, delayed: bool, raises: bool) -> None:
        self._outbox = outbox
        self._app = outbox.app
        self._settings = outbox.settings
        self._rows = rows
        self._delayed = delayed
        self._raises = raises
        self._sent = _Sent(outbox)

    def run(self) -> list[Ran]:
        self._app.loader.import_default_modules()
        self._app.finalize(auto=True)
        ran: list[Ran] = []
        while (one := self._next()) is not None:
            ran.append(one)
            if self._raises and one.outcome in {"failed", "again"} and one.error is not None:
                raise one.error
            if len(ran) >= MANY:
                raise RuntimeError(f"{MANY:,} tasks have run, and there are more: does a task stage itself for ever?")
        return ran

    def _next(self) -> Ran | None:
        if self._sent.messages:
            return self._run_sent(self._sent.messages.popleft())
        row = self._rows.take(delayed=self._delayed, lease=self._settings.publish_lease)
        return None if row is None else self._run_row(row)

    def _run_row(self, row: ClaimedRow) -> Ran:
        delivery = Delivery(row.id, row.attempt, row.token, self._outbox.queues.settlements.name)
        try:
            if is_plain(row):
                row = self._written_out(row)
            message = outgoing(row, self._outbox.queues, settlement_queue=delivery.queue)
            settlement, ran = self._run(delivery, self._received(message), expired=row.expired)
        except PublishError as error:
            settlement = Settlement.failed(delivery, row.message.task_id, describe(error))
            ran = Ran(row_id=row.id, task=row.message.task, task_id=row.message.task_id, outcome="failed", error=error)
        self._rows.settle(settlement, self._settings.policy, self._settings.queue_lease)
        return ran

    def _written_out(self, row: ClaimedRow) -> ClaimedRow:
        """Give a row that plain SQL inserted its message, as a relay does."""
        args, kwargs = self._rows.plain.arguments([row.id])[row.id]
        message = message_of(self._app, row, args, kwargs, max_bytes=self._settings.max_body_bytes)
        self._rows.plain.write([(row.claim, message)])
        return replace(row, message=message)

    def _run_sent(self, sent: Sent) -> Ran:
        return self._run(None, self._received(sent))[1]

    def _received(self, message: Outgoing | Sent) -> Message:
        """The message as a worker receives it."""
        where = message if isinstance(message, Sent) else message.target
        return Message(
            body=message.body,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=json.loads(encode_fields(message.headers)),
            properties=message.properties,
            delivery_info={"exchange": where.exchange, "routing_key": where.routing_key},
            accept=prepare_accept_content(self._app.conf.accept_content),
        )

    def _run(self, delivery: Delivery | None, message: Message, *, expired: bool = False) -> tuple[Settlement, Ran]:
        """Run the task of a message as a worker's pool would."""
        headers = message.headers
        uuid, name = str(headers["id"]), str(headers["task"])
        about = Delivery(0, 0, NOBODY, "-") if delivery is None else delivery
        row_id = None if delivery is None else delivery.row_id

        def ran(
            settlement: Settlement, result: Any = None, error: BaseException | None = None
        ) -> tuple[Settlement, Ran]:
            outcome = settlement.kind.value
            return settlement, Ran(row_id=row_id, task=name, task_id=uuid, outcome=outcome, result=result, error=error)

        if expired:
            return ran(Settlement.cancelled(about, uuid, "expired"))
        task = self._app.tasks.get(name)
        if task is None:
            missing = LookupError(f"no task {name!r} is registered in this app")
            return ran(Settlement.failed(about, uuid, describe(missing)), error=missing)
        request = Request(message, app=self._app, hostname=HOSTNAME, task=task)
        trace = build_tracer(name, task, self._app.loader, HOSTNAME, app=self._app)
        retry = RetrySink(self._app, uuid, int(headers.get("retries") or 0))
        payload = {**request.request_dict, **(message.payload[2] or {}), "hostname": HOSTNAME, "is_eager": False}
        with diverted(self._sent), diverted(retry):
            value, info, _, _ = trace(uuid, request.args, request.kwargs, payload)
        if retry.caught is not None:
            return ran(Settlement.retry(about, uuid, to_retried(retry.caught, request)))
        if info is None:
            return ran(Settlement.done(about, uuid), result=value)
        return ran(self._ended(about, uuid, task, info, value), error=info.retval)

    def _ended(self, about: Delivery, uuid: str, task: Any, info: Any, value: Any) -> Settlement:
        """What a worker reports of a task that did not return."""
        error = info.retval
        if isinstance(error, AlreadyDone):
            return Settlement.done(about, uuid, f"skipped: {error}")
        if isinstance(error, RunAgain):
            return Settlement.again(about, uuid, describe(error))
        if isinstance(error, Ignore):
            return Settlement.done(about, uuid, f"ignored: {error}")
        text = describe(error, getattr(value, "traceback", None))
        again = info.state == states.FAILURE and matches(
            lineage_of(type(error)), names_of(task, self._settings.retry_for)
        )
        if again or (isinstance(error, Reject) and error.requeue):
            return Settlement.again(about, uuid, text)
        return Settlement.failed(about, uuid, text)
