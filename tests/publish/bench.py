"""What every test of publishing needs: rows, a publisher whose events are kept, and a look at the broker's queues."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import Celery
from kombu import Connection, Queue
from kombu.utils.json import dumps

from outbox_relay.core.row import ClaimedRow, Message
from outbox_relay.core.settlement import HEADER
from outbox_relay.events import Event, Events
from outbox_relay.publish.envelope import Outgoing, outgoing
from outbox_relay.publish.publisher import Outcome, open_publisher
from outbox_relay.publish.queues import Queues
from outbox_relay.settings import Settings
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_relay.publish.receipts import Publisher

SETTLEMENTS = "outbox.settlements.shop"
BODY = b'[[1, 2], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


def make_app(url: str, **conf: Any) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update({"outbox_enabled": True, "outbox_database_url": "sqlite://", "task_default_queue": "work", **conf})
    return app


class Bench:
    """One broker. ``events`` are the names of what the publisher told."""

    def __init__(self, url: str, *, proxied: int | None = None, heartbeat: float = 10.0, **conf: Any) -> None:
        self.url = url
        self.proxy = None if proxied is None else Proxy(proxied)
        self.app = make_app(url if self.proxy is None else self.proxy.url(url), **conf)
        self.queues = Queues(self.app, Settings.from_conf(self.app.conf, main=self.app.main))
        self.events: list[str] = []
        self.heartbeat = heartbeat
        self.publisher = self.open()
        self._ids = 0
        self._look: Connection | None = None

    def open(self, heartbeat: float | None = None) -> Publisher:
        events = Events()
        events.subscribe(self._note)
        return open_publisher(self.app, events=events, heartbeat=heartbeat or self.heartbeat)

    def _note(self, event: Event) -> None:
        assert str(event)  # its text has all of its fields
        self.events.append(event.name)

    # -- rows -----------------------------------------------------------------------------------------------------

    def row(self, queue: str = "work", **fields: Any) -> ClaimedRow:
        self._ids += 1
        properties = {"delivery_mode": 2, "priority": 0, "correlation_id": str(self._ids)}
        message = {
            "task": "shop.charge",
            "task_id": str(self._ids),
            "task_queue": queue,
            "exchange": "",
            "routing_key": queue,
            "body": fields.pop("body", BODY),
            "content_type": "application/json",
            "content_encoding": "utf-8",
            "headers": dumps({"lang": "py", "task": "shop.charge", **fields.pop("headers", {})}).encode(),
            "properties": dumps({**properties, **fields.pop("properties", {})}).encode(),
            **{name: fields.pop(name) for name in ("exchange", "routing_key") if name in fields},
        }
        row = {
            "id": self._ids,
            "token": uuid4(),
            "namespace": "default",
            "node": None,
            "attempt": 0,
            "retries": 0,
            "settle_on": None,
            "expired": False,
        }
        return ClaimedRow(message=Message(**message), **{**row, **fields})

    def out(self, queue: str = "work", **fields: Any) -> Outgoing:
        return outgoing(self.row(queue, **fields), self.queues, settlement_queue=SETTLEMENTS)

    def outs(self, count: int, queue: str = "work", **fields: Any) -> list[Outgoing]:
        return [self.out(queue, **fields) for _ in range(count)]

    # -- publish and look -----------------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Outgoing], timeout: float = 20.0) -> list[Outcome]:
        receipts = self.publisher.publish(messages, timeout=timeout)
        assert [receipt.key for receipt in receipts] == [message.key for message in messages]
        return [receipt.outcome for receipt in receipts]

    @property
    def connection(self) -> Connection:
        """A connection to the broker, past any proxy."""
        if self._look is None:
            self._look = Connection(self.url)
        return self._look

    def declare(self, queue: Queue) -> None:
        with self.connection.channel() as channel:
            queue(channel).declare()

    def delete(self, queue: str) -> None:
        with self.connection.channel() as channel:
            channel.queue_delete(queue)

    def take(self, queue: str = "work") -> list[Any]:
        """Take all messages of a queue."""
        taken = []
        with self.connection.channel() as channel:
            while (message := Queue(queue)(channel).get(no_ack=True)) is not None:
                taken.append(message)
        return taken

    def row_ids(self, queue: str = "work") -> list[int]:
        return [int(message.headers[HEADER].split(";")[1]) for message in self.take(queue)]

    def forget_look(self) -> None:
        """Drop the connection that looks: the broker was restarted."""
        if self._look is not None:
            self._look.collect()
            self._look = None

    def close(self) -> None:
        self.publisher.close()
        if self._look is not None:
            self._look.release()
        if self.proxy is not None:
            self.proxy.close()


def counted(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return dict(Counter(outcome.value for outcome in outcomes))
