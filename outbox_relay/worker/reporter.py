"""The thread that reports: it has a connection of its own, and nothing else in the worker waits for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from outbox_relay.core import wire
from outbox_relay.core.beacon import encode_beacon
from outbox_relay.publish.envelope import Outgoing, report
from outbox_relay.publish.queues import beacons_for, settlements_queue
from outbox_relay.publish.receipts import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from outbox_relay.core.beacon import Beacon, Held
    from outbox_relay.core.settlement import Settlement
    from outbox_relay.events import Events
    from outbox_relay.publish.receipts import Publisher

WINDOW = 0.02  # what is reported within it travels together
BUSY_WINDOW = 0.05  # the same while much is reported: a message costs the worker more than some tasks do
BUSY = 20  # settlements at once
TICK = 0.25
PULSE = 1.0
BATCH = 500
MESSAGE_BYTES = 64 * 1024  # a relay that catches up has hundreds of messages in hand at once
MAX_WAITING = 200_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
PUBLISH_TIMEOUT = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
KNOWN_OUTBOXES = 100


@dataclass(slots=True)
class Parcel:
    """Settlements that travel as one message."""

    queue: str
    settlements: list[Settlement]
    size: int = 0


@dataclass(slots=True)
class Waiting:
    """What has been reported and not sent, within bounds: the pool's callbacks write it, and the thread reads it."""

    items: deque[Settlement] = field(default_factory=deque)
    bulky: int = 0
    dropped: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, settlement: Settlement) -> bool:
        """Add a settlement; False where there is no room, and it is dropped."""
        size = bulk_of(settlement)
        if len(self.items) >= MAX_WAITING or (size and self.bulky + size > MAX_WAITING_BYTES):
            with self.lock:
                self.dropped += 1
            return False
        if size:
            with self.lock:
                self.bulky += size
        self.items.append(settlement)
        return True

    def take(self) -> list[Settlement]:
        """Take what is there, as far as it was there when the taking began."""
        taken = [self.items.popleft() for _ in range(min(len(self.items), BATCH))]
        if size := sum(map(bulk_of, taken)):
            with self.lock:
                self.bulky -= size
        return taken

    def take_dropped(self) -> int:
        with self.lock:
            dropped, self.dropped = self.dropped, 0
        return dropped


def bulk_of(settlement: Settlement) -> int:
    """The bytes of a settlement that count; nearly every one has none."""
    size = 0 if settlement.error is None else len(settlement.error)
    retried = settlement.retried
    if retried is not None:
        size += len(retried.body or b"") + len(retried.headers or b"")
    return size


def parcels_of(settlements: list[Settlement]) -> list[Parcel]:
    """Sort settlements into messages: one queue each, none too large."""
    parcels: list[Parcel] = []
    filling: dict[str, Parcel] = {}
    for settlement in settlements:
        queue, size = settlement.delivery.queue, bulk_of(settlement)
        parcel = filling.get(queue)
        if parcel is None or (parcel.size and parcel.size + size > MESSAGE_BYTES):
            parcel = filling[queue] = Parcel(queue, [])
            parcels.append(parcel)
        parcel.settlements.append(settlement)
        parcel.size += size
    return parcels


class Reporter:
    """Sends settlements, confirmed and persistent, and beacons, from one thread.

    The thread is started once a worker, and lives until :meth:`stop`: until the last task has ended. A broker that is
    away holds up nothing but this thread; what is reported meanwhile waits in memory, up to a bound.
    """

    def __init__(
        self,
        worker: wire.Reporter,
        open_publisher: Callable[[], Publisher],
        events: Events,
        *,
        heartbeat: timedelta,
        beacon_life: timedelta,
    ) -> None:
        self.worker = worker
        self.describe: Callable[[str], Beacon] | None = None  # says what the worker holds, for an outbox
        self.newly_running: Callable[[float], dict[str, tuple[Held, ...]]] | None = None
        self._open_publisher = open_publisher
        self._events = events
        self._heartbeat = heartbeat.total_seconds()
        self._beacon_life = beacon_life
        self._waiting = Waiting()
        self._unsent: list[Parcel] = []
        self._outboxes: dict[str, None] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._next_beacon = 0.0
        self._next_pulse = 0.0
        self._down = False
        self._gave_up = False  # a settlement was dropped: its row waits for its lease to end
        self._farewell = False
        self._busy = False
        self._pause = FIRST_PAUSE
        self._longest_pause = min(LONGEST_PAUSE, self._heartbeat)  # relays wait so long for beacons after an outage
        self._thread: threading.Thread | None = None

    def start(self, outboxes: tuple[str, ...] = ()) -> None:
        """Start the thread; ``outboxes`` are settlement queues of outboxes that hear of this worker from the first."""
        self._outboxes.update(dict.fromkeys(outboxes))
        self._thread = threading.Thread(target=self._run, name="outbox-reporter", daemon=True)
        self._thread.start()

    def report(self, settlement: Settlement) -> None:
        """Hand over a settlement. Does not wait, whatever the broker does."""
        if self._waiting.put(settlement) and not self._wake.is_set():
            self._wake.set()

    def beacon_soon(self) -> None:
        """Something has changed that the outboxes should hear of at once."""
        self._next_beacon = 0.0
        self._wake.set()

    def stop(self, timeout: float, *, farewell: bool = False) -> None:
        """Send what is left, within ``timeout`` seconds, and end the thread. What cannot be sent is dropped.

        ``farewell``: no task runs any more, and the outboxes are told, after everything else, that the worker leaves.
        """
        self._farewell = farewell
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        left = len(self._waiting.items) + sum(len(parcel.settlements) for parcel in list(self._unsent))
        if left:
            self._events.emit("worker.dropped", settlements=left, reason="the worker ends, and the broker is away")

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        publisher = self._open_publisher()
        while not (self._stopping.is_set() and not self._waiting.items and not self._unsent):
            try:
                self._turn(publisher)
            except Exception as error:  # noqa: BLE001 - without this thread the worker would go silent
                self._events.emit("worker.fault", error=repr(error))
                self._stopping.wait(LONGEST_PAUSE)
        if self._farewell and self.describe is not None and not self._gave_up:
            self._send_all(publisher, [(queue, self._leaving(queue)) for queue in list(self._outboxes)])
        publisher.close()

    def _turn(self, publisher: Publisher) -> None:
        if not self._unsent:
            if not self._waiting.items and not self._stopping.is_set():
                self._wake.wait(TICK)
            if 0 < len(self._waiting.items) < BATCH:
                self._stopping.wait(BUSY_WINDOW if self._busy else WINDOW)
            self._wake.clear()  # before the taking: what is put in after it wakes again
            taken = self._waiting.take()
            self._busy = len(taken) >= BUSY
            self._unsent = parcels_of(taken)
        if self._unsent:
            self._send(publisher)
        if not self._stopping.is_set():
            if not self._down:
                self._send_beacons(publisher)
            self._keep_alive(publisher)

    def _keep_alive(self, publisher: Publisher) -> None:
        """An idle connection needs its heartbeats, and an idle thread learns here that the broker has gone away."""
        now = time.monotonic()
        if now >= self._next_pulse:
            self._next_pulse = now + PULSE
            publisher.pulse()

    def _send(self, publisher: Publisher) -> None:
        parcels = self._unsent
        messages = [self._message(key, parcel) for key, parcel in enumerate(parcels)]
        receipts = publisher.publish(messages, timeout=PUBLISH_TIMEOUT)
        left: list[Parcel] = []
        why = ""
        for parcel, receipt in zip(parcels, receipts, strict=True):
            if receipt.outcome is Outcome.CONFIRMED:
                self._know(parcel.queue)
            elif receipt.outcome is Outcome.UNSENDABLE:
                left += self._halve(parcel, receipt.detail)
            else:
                left.append(parcel)
                why = why or receipt.detail or receipt.outcome.value
        self._unsent = left
        if why:
            self._lost(why)
        else:
            self._back()

    def _message(self, key: int, parcel: Parcel) -> Outgoing:
        return report(key, settlements_queue(parcel.queue), wire.encode_settlements(self.worker, parcel.settlements))

    def _halve(self, parcel: Parcel, why: str) -> list[Parcel]:
        """A message that the broker finds too large; a single settlement that it does is given up."""
        settlements = parcel.settlements
        if len(settlements) == 1:
            self._gave_up = True
            self._events.emit("worker.dropped", settlements=1, reason=f"it cannot be sent: {why}")
            return []
        middle = len(settlements) // 2
        return [Parcel(parcel.queue, settlements[:middle]), Parcel(parcel.queue, settlements[middle:])]

    def _lost(self, why: str) -> None:
        if not self._down:
            self._down = True
            self._events.emit("worker.lost", error=why)
        if dropped := self._waiting.take_dropped():
            self._gave_up = True
            self._events.emit("worker.dropped", settlements=dropped, reason="too many wait for the broker")
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, self._longest_pause)

    def _back(self) -> None:
        self._pause = FIRST_PAUSE
        if self._down:
            self._down = False
            self._events.emit("worker.back")

    # -- beacons ------------------------------------------------------------------------------------------------------

    def _know(self, queue: str) -> None:
        if queue not in self._outboxes and len(self._outboxes) < KNOWN_OUTBOXES:
            self._outboxes[queue] = None

    def _send_beacons(self, publisher: Publisher) -> None:
        now = time.monotonic()
        beacons: list[tuple[str, Beacon]] = []
        if self.describe is not None and now >= self._next_beacon:
            self._next_beacon = now + self._heartbeat
            beacons += [(queue, self.describe(queue)) for queue in list(self._outboxes)]
        elif self.newly_running is not None and self.describe is not None:
            for queue, held in self.newly_running(TICK).items():
                self._know(queue)
                beacons.append((queue, self._partial(queue, held)))
        if beacons and not self._send_all(publisher, beacons):
            self._next_beacon = min(self._next_beacon, now + PULSE)  # soon after the broker is back, not in a heartbeat

    def _send_all(self, publisher: Publisher, beacons: list[tuple[str, Beacon]]) -> bool:
        messages = [
            report(key, beacons_for(queue), encode_beacon(beacon), persistent=False, expiration=self._beacon_life)
            for key, (queue, beacon) in enumerate(beacons)
        ]
        receipts = publisher.publish(messages, timeout=PUBLISH_TIMEOUT)
        return all(receipt.outcome is Outcome.CONFIRMED for receipt in receipts)

    def _leaving(self, queue: str) -> Beacon:
        assert self.describe is not None
        return replace(self.describe(queue), held=(), leaving=True)

    def _partial(self, queue: str, held: tuple[Held, ...]) -> Beacon:
        assert self.describe is not None
        return replace(self.describe(queue), held=held, partial=True)
