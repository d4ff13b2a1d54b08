"""Apply what workers report: settlements to their rows, beacons to the leases of what they hold."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outbox_relay.core.beacon import Beacon, decode_beacon
from outbox_relay.core.lifecycle import Status
from outbox_relay.core.wire import WireError, load_document, read_settlements
from outbox_relay.errors import StoreAway
from outbox_relay.relay.markers import Marker
from outbox_relay.relay.outages import Outage

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from kombu import Message

    from outbox_relay.core.settlement import Settlement
    from outbox_relay.relay.inbox import Inbox
    from outbox_relay.relay.parts import Parts
    from outbox_relay.relay.reading import Reading

BATCH = 1_000  # settlements in one transaction
MESSAGES = 100  # messages, of many settlements each, that are taken together
WAIT = 1.0


@dataclass(slots=True)
class Mail:
    """A batch of messages, sorted. ``rubbish``: bodies that are none of the outbox's, with what is wrong with them."""

    settlements: list[Settlement] = field(default_factory=list)
    beacons: list[Beacon] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    wishes: list[str] = field(default_factory=list)
    rubbish: list[tuple[bytes, str]] = field(default_factory=list)


class Settle:
    """The settling loop of a relay. Call :meth:`tick` again and again; it says when to call it next.

    ``sign_on`` signs the register of relays: this one lives, and has applied all that it had received by an instant of
    the database's clock. ``wish`` is called with the name of a task that beat sent to the relay, ``waits`` at each try
    to reach a broker that is away.
    """

    def __init__(
        self,
        parts: Parts,
        inbox: Inbox,
        reading: Reading,
        *,
        sign_on: Callable[[datetime | None], None],
        wish: Callable[[str], None],
        on_beacon: Callable[[Beacon], None],
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._inbox = inbox
        self._events = parts.events
        self._reading = reading
        self._sign_on = sign_on
        self._wish = wish
        self._on_beacon = on_beacon
        self._waits = waits
        self._outage = Outage(parts.outages.voice(), "store")
        self._wait = min(WAIT, parts.leases.heartbeat.total_seconds() / 2)
        self._sign_at = 0.0

    def tick(self) -> float:
        """Receive a batch, apply it, acknowledge it. Return how many seconds the next one has to wait."""
        if self._outage.on and (delay := self._look_for_store()):
            return delay
        if delay := self._inbox.open():
            self._reading.breaks()
            self._waits()
            return delay
        try:
            messages = self._inbox.receive(self._wait, MESSAGES)
            if messages:
                self._events.emit("settle.received", messages=len(messages))
                self._apply(self._sort(messages))
                self._inbox.acknowledge(messages)
            self._reading.goes_on()
            if time.monotonic() >= self._sign_at:
                self._report_in()
        except StoreAway as error:
            self._reading.breaks()
            self._inbox.pause()
            return self._outage.goes_on(error)
        except self._inbox.lost as error:
            self._reading.breaks()
            return self._inbox.gone(error)
        return 0.0

    def hurry(self) -> None:
        """Somebody waits for this relay's word that all it had received is applied."""
        self._sign_at = 0.0

    def drain(self) -> None:
        """Stop consuming: what has not been applied goes back to the broker."""
        self._inbox.hang_up()

    def _look_for_store(self) -> float:
        """The database was away: see whether it is back. The connection to the broker is kept alive meanwhile."""
        self._inbox.keep_alive()
        try:
            self._store.now()
        except StoreAway as error:
            return self._outage.goes_on(error)
        self._outage.is_over()
        return 0.0

    def _report_in(self) -> None:
        """Sign the register of relays: this one lives, and has applied all that it had received before now."""
        asked_at = time.monotonic()
        now = self._store.now()
        self._reading.compare(now, asked_at)
        self._inbox.catch_up()
        while messages := self._inbox.receive(0, MESSAGES):
            self._apply(self._sort(messages))
            self._inbox.acknowledge(messages)
        self._sign_on(now)
        self._sign_at = time.monotonic() + self._parts.leases.heartbeat.total_seconds()

    # -- a batch ----------------------------------------------------------------------------------------------------

    def _sort(self, messages: list[Message]) -> Mail:
        mail = Mail()
        for message in messages:
            body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
            try:
                self._sort_one(mail, message, body)
            except WireError as error:
                mail.rubbish.append((body, str(error)))
        return mail

    def _sort_one(self, mail: Mail, message: Message, body: bytes) -> None:
        queue = message.delivery_info.get("routing_key")
        if queue == self._parts.queues.relay.name:
            mail.wishes.append(str((message.headers or {}).get("task")))
        elif queue == self._parts.queues.beacons.name:
            mail.beacons.append(decode_beacon(body))
        elif (marker := Marker.read(load_document(body))) is not None:
            mail.markers.append(marker)
        else:
            settlements, refused = read_settlements(body)
            mail.settlements.extend(settlements)
            mail.rubbish.extend(refused)

    def _apply(self, mail: Mail) -> None:
        """Apply a batch; it may be applied again, in whole or in part, without harm.

        Raises:
            StoreAway: the database is away.
        """
        leases, life = self._parts.leases, self._parts.message_life
        for begin in range(0, len(mail.settlements), BATCH):
            self._settle(mail.settlements[begin : begin + BATCH])
        for beacon in mail.beacons:
            if beacon.leaving:
                self._store.worker_gone(beacon.instance)
                continue
            self._store.beacon(beacon, run_lease=leases.run, message_expires=life is not None)
            self._on_beacon(beacon)
        for body, reason in mail.rubbish:
            self._store.set_aside(body, reason)
            self._events.emit("settle.set_aside", reason=reason)
        for marker in mail.markers:  # whose turn is after everything that came before them
            self._store.marker_back(marker.owner, marker.id)
        for wish in mail.wishes:
            self._wish(wish)

    def _settle(self, settlements: list[Settlement]) -> None:
        settled = self._store.settle(
            settlements,
            self._parts.settings.policy,
            message_life=self._parts.message_life,
            queue_lease=self._parts.leases.queue,
        )
        kinds = Counter(settlement.kind.value for settlement in settlements)
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        self._events.emit("settle.applied", rows=len(settled.verdicts), kinds=told)
        failed = [verdict for verdict in settled.verdicts if verdict.status is Status.FAILED]
        for verdict in failed:
            self._events.emit("settle.failed", row_id=verdict.row_id, error=_first_line(verdict.error))
        if failed:
            first = failed[0]
            self._events.emit("settle.failures", rows=len(failed), first=first.row_id, error=_first_line(first.error))
        if settled.stale:
            said = {settlement.delivery.row_id: settlement.kind.value for settlement in settlements}
            for stale in settled.stale:
                self._events.emit("settle.stale", row_id=stale.row_id, kind=said[stale.row_id], reason=stale.why)
            reasons = ", ".join(sorted({stale.why for stale in settled.stale}))
            self._events.emit("settle.unchanged", reports=len(settled.stale), reasons=reasons)


def _first_line(error: str | None) -> str:
    return (error or "").partition("\n")[0]
