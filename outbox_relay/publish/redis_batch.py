"""The publisher for Redis: many messages in one pipeline, and an answer for each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kombu.transport.redis import PublishBatch
from redis import exceptions

from outbox_relay.publish.kombu_link import KombuLink
from outbox_relay.publish.one_by_one import PATIENCE, prepare
from outbox_relay.publish.receipts import Outcome, Publisher, Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kombu import Connection

    from outbox_relay.events import Events
    from outbox_relay.publish.envelope import Outgoing

BATCH = 500
IO_TIMEOUT = 10.0  # seconds for the answer to a whole pipeline
PROBE = "outbox.probe"
#: Answers of a server that takes no writes at present, for whatever key.
BLOCKING = ("OOM", "MISCONF", "NOREPLICAS", "LOADING", "BUSY", "MASTERDOWN", "READONLY")
BLOCKING_ERRORS = (
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.BusyLoadingError,
    exceptions.MasterDownError,
)


class AnsweredBatch(PublishBatch):
    """kombu's pipeline of publishes, that tells what became of each instead of raising the first error."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel, max_size=1_000_000)  # sent by answers() alone
        self._commands: list[int] = []

    def publish(self, message: Any, **kwargs: Any) -> None:
        self._commands.append(0)
        super().publish(message, **kwargs)

    def add(self, name: str, *args: Any) -> None:
        super().add(name, *args)
        self._commands[-1] += 1

    def answers(self) -> list[list[Any]]:
        """Send all, and return what Redis answered to the commands of each message; none: no queue is bound."""
        answers = iter(self.pipeline.execute(raise_on_error=False))
        return [[next(answers) for _ in range(commands)] for commands in self._commands]


class RedisPublisher(Publisher):
    """Publish in pipelines of up to :data:`BATCH` messages."""

    def __init__(self, connection: Connection, events: Events | None = None) -> None:
        self._link = KombuLink(connection, events, {"socket_timeout": IO_TIMEOUT, "socket_connect_timeout": 4})
        self._blocked = False

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def blocked(self) -> bool:
        return self._blocked

    def publish(self, messages: Sequence[Outgoing], *, timeout: float) -> list[Receipt]:
        deadline = time.monotonic() + timeout
        receipts = [Receipt(message.key, Outcome.UNSENT) for message in messages]
        pairs = list(zip(messages, receipts, strict=True))
        for begin in range(0, len(pairs), BATCH):
            if not self._publish_batch(pairs[begin : begin + BATCH], deadline):
                break
        return receipts

    def _publish_batch(self, pairs: list[tuple[Outgoing, Receipt]], deadline: float) -> bool:
        """Publish some messages, once more where the connection breaks; tell whether it is worth going on."""
        link = self._link
        for _ in range(2):
            if (left := deadline - time.monotonic()) <= 0:
                return False
            try:
                link.open(min(left, PATIENCE))
                self._ask()
                self._send(pairs)
            except link.lost as error:
                for _, receipt in pairs:
                    receipt.detail = receipt.detail or str(error)
                link.lose(error)
            except link.refused as error:  # a queue could not be declared, for the server takes no writes
                self._note_blocked(error)
                return False
            else:
                return not self._blocked
        return False

    def _ask(self) -> None:
        """See that the server is there: what is sent to one that has gone since the last time would be in doubt."""
        with self._link.channel.conn_or_acquire() as client:
            client.ping()

    def _send(self, pairs: list[tuple[Outgoing, Receipt]]) -> None:
        link = self._link
        batch = AnsweredBatch(link.channel)
        try:
            sent = [receipt for message, receipt in pairs if self._add(batch, message, receipt)]
            in_doubt = {receipt.key for receipt in sent if receipt.outcome is Outcome.UNKNOWN}  # an earlier try's
            for receipt in sent:
                receipt.outcome = Outcome.UNKNOWN
            answers = batch.answers()
        finally:
            batch.close()
        blocked: Exception | None = None
        for receipt, answer in zip(sent, answers, strict=True):
            error = next((one for one in answer if isinstance(one, Exception)), None)
            if error is None:
                receipt.outcome = Outcome.CONFIRMED if answer else Outcome.UNROUTABLE
                receipt.detail = "" if answer else "no queue is bound to its exchange with its routing key"
            else:
                blocks = is_blocking(error)
                blocked = error if blocks else blocked
                receipt.detail = str(error)
                if receipt.key not in in_doubt:  # this try surely did not deliver it; the one before may have
                    receipt.outcome = Outcome.UNSENT if blocks else Outcome.REFUSED
        if blocked is not None or self._blocked:
            self._note_blocked(blocked)

    def _add(self, batch: AnsweredBatch, message: Outgoing, receipt: Receipt) -> bool:
        """Add a message to the pipeline, or settle why it cannot be sent."""
        if receipt.outcome not in (Outcome.UNSENT, Outcome.UNKNOWN):
            return False
        target = message.target
        try:
            self._link.declare(target.queue, target.exchange)
            batch.publish(
                prepare(self._link.channel, message), exchange=target.exchange, routing_key=target.routing_key
            )
        except self._link.refused as error:
            if is_blocking(error):
                raise
            receipt.outcome, receipt.detail = Outcome.REFUSED, str(error)
            return False
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            receipt.outcome, receipt.detail = Outcome.UNSENDABLE, repr(error)
            return False
        return True

    # -- a server that takes no writes ----------------------------------------------------------------------------

    def pulse(self) -> None:
        self._link.pulse()
        if not self._link.connected:
            return
        try:
            channel = self._link.channel
            with channel.conn_or_acquire() as client:
                # refused as a real message would be, and without effect where it is not
                client.lpushx(channel.global_keyprefix + PROBE, "")
            self._note_blocked(None)
        except self._link.lost as error:
            self._link.lose(error)
        except exceptions.ResponseError as error:
            self._note_blocked(error if is_blocking(error) else None)

    def _note_blocked(self, error: Exception | None) -> None:
        if error is not None and not self._blocked:
            self._link.emit("broker.blocked", reason=str(error))
        if error is None and self._blocked:
            self._link.emit("broker.unblocked")
        self._blocked = error is not None
        if isinstance(error, exceptions.ReadOnlyError):
            self._link.close()  # a replica by now: look for the new primary

    def close(self) -> None:
        self._link.close()


def is_blocking(error: Exception) -> bool:
    """Whether an answer says that the server takes no writes at all, rather than not this one."""
    return isinstance(error, BLOCKING_ERRORS) or str(error).startswith(BLOCKING)
