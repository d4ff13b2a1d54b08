"""Claim rows that are due, publish them, and mark what the broker confirmed.

While one load is on its way to the broker, a second thread claims the next one and marks the last one. All that the
second thread does is the store's; all that the first does is the broker's. It begins with a load before the broker has
confirmed the one before, so that the broker never waits for the relay.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from outbox_relay.core.explain import refused_by
from outbox_relay.core.placement import DEFAULT_NAMESPACE
from outbox_relay.core.row import Published
from outbox_relay.errors import PublishError, StoreAway, StoreError, UnreadableError
from outbox_relay.publish.envelope import outgoing
from outbox_relay.publish.receipts import Outcome
from outbox_relay.relay.circuits import Circuits
from outbox_relay.relay.load import Air, Load
from outbox_relay.relay.outages import Outage
from outbox_relay.relay.plain import Scribe
from outbox_relay.relay.states import States

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outbox_relay.core.row import Claim, ClaimedRow
    from outbox_relay.publish.envelope import Outgoing
    from outbox_relay.publish.receipts import Publisher, Receipt
    from outbox_relay.relay.parts import Parts

PULSE = 1.0  # seconds between two looks after an idle connection to the broker
AWAY = 0.25  # seconds between two looks at a broker that is away or blocks
TIDYING = timedelta(seconds=0.25)  # that a sweep may spend on rows that are kept back


class Sweep:
    """The publishing loop of a relay. Call :meth:`tick` again and again; it says when to call it next.

    ``new_namespace`` is called when rows of a namespace are claimed for the first time, or it is placed on nodes, whose
    workers have to serve it before any row can be claimed.
    """

    def __init__(
        self,
        parts: Parts,
        publisher: Publisher,
        *,
        new_namespace: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._publisher = publisher
        self._settings = parts.settings
        self._events = parts.events
        self._leases = parts.leases
        self._clock = clock
        self._new_namespace = new_namespace
        self._namespaces = {DEFAULT_NAMESPACE}
        self._scribe = Scribe(parts)
        self._circuits = Circuits(parts.events, clock)
        self._states = States(parts.events, clock)
        self._store_outage = Outage(parts.outages.voice(), "store")
        self._side = ThreadPoolExecutor(1, "outbox-sweep-store")
        self._ahead: Future[Load] | None = None
        self._behind: Future[None] | None = None
        self._air: Air | None = None
        self._writes: deque[Callable[[], object]] = deque()  # what the store still has to be told
        self._doubts: dict[int, tuple[Published, float]] = {}  # sent, and not confirmed yet
        self._pulse_at = clock()

    # -- the loop ---------------------------------------------------------------------------------------------------

    def tick(self) -> float:
        """Sweep once. Return how many seconds the next sweep may wait: 0 where there may be more to do."""
        try:
            if not self._broker_takes():
                self._let_go("the broker is away or blocks")
                return AWAY
            load = self._take()
            if not load:
                self._land()
                self._finish_writes()
                return 0.0 if load.untidy else self._settings.poll_interval.total_seconds()
            if load.more or load.untidy:
                self._ahead = self._side.submit(self._claim)
            self._publish(load)
            self._write_behind()
            if not (load.more or load.untidy):
                self._land()
                self._finish_writes()
                return self._settings.poll_interval.total_seconds()
        except StoreAway as error:
            self._land()
            return self._store_outage.goes_on(error)
        except UnreadableError as error:
            self._land()
            self._finish_writes()
            self._states.unreadable(str(error))
            return self._settings.poll_interval.total_seconds()
        return 0.0

    def drain(self) -> None:
        """Give back what was claimed and not published, and write down what was.

        Raises:
            StoreAway: the database is away; what could not be given back is re-armed when its lease ends.
        """
        try:
            self._let_go("the relay stops")
        finally:
            self._side.shutdown(wait=False, cancel_futures=True)

    # -- the broker's side ------------------------------------------------------------------------------------------

    def _broker_takes(self) -> bool:
        publisher, now = self._publisher, self._clock()
        if not publisher.connected or publisher.blocked or now >= self._pulse_at:
            publisher.pulse()
            self._pulse_at = self._clock() + PULSE
        if self._doubts:
            self._hear_late()
        return publisher.connected and not publisher.blocked

    def _hear_late(self) -> None:
        """A broker that had stalled may confirm after all. What nothing is heard of is re-armed when its lease ends."""
        for receipt in self._publisher.late():
            published, lapses = self._doubts.pop(receipt.key, (None, 0.0))
            if published is not None and receipt.outcome is Outcome.CONFIRMED:
                self._writes.append(partial(self._mark, [published], lapses))
        if not self._publisher.connected:
            self._doubts.clear()
        long_ago = self._clock() - self._leases.queue.total_seconds()
        for row_id in [row_id for row_id, (_, lapses) in self._doubts.items() if lapses < long_ago]:
            del self._doubts[row_id]  # not every broker ever says

    def _publish(self, load: Load) -> None:
        """Begin to publish a batch, and land the one before it: the broker has work while that one is written down."""
        self._pulse_at = self._clock() + PULSE
        air = None
        messages = self._without_refused(load) if self._circuits else load.messages
        left = load.until - self._clock()
        if left <= 0:
            self._release([load.claims[message.key] for message in messages], "the publish lease is half over")
        elif messages:
            air = Air(load, messages, self._publisher.begin(messages, timeout=left))
        self._land()
        self._air = air
        if air is None:
            self._note_unpublished(load)

    def _land(self) -> None:
        """Finish the batch that is being published, and note what the store is to be told of it."""
        air, self._air = self._air, None
        if air is not None:
            self._note(air.load, air.messages, self._publisher.finish(air.flight))
            self._note_unpublished(air.load)

    def _note_unpublished(self, load: Load) -> None:
        if load.expired:
            self._writes.append(partial(self._expire, load.expired))
        if load.unsendable:
            self._writes.append(partial(self._store.fail_unsendable, load.unsendable))

    def _without_refused(self, load: Load) -> list[Outgoing]:
        """Set aside, untried, the messages for queues that have just refused others."""
        messages = []
        waiting: dict[str, list[Claim]] = {}
        refused = {name: self._circuits.refuses(name) for name in {one.target.queue.name for one in load.messages}}
        for message in load.messages:
            queue = message.target.queue.name
            if refused[queue] is None:
                messages.append(message)
            else:
                waiting.setdefault(queue, []).append(load.claims[message.key])
        for queue, claims in waiting.items():
            if (refusal := refused[queue]) is not None:
                delay, reason = refusal
                self._writes.append(partial(self._store.postpone, claims, delay, refused_by(queue, reason)))
        return messages

    def _note(self, load: Load, messages: Sequence[Outgoing], receipts: Sequence[Receipt]) -> None:
        published: list[Published] = []
        unsent: list[Claim] = []
        refused: dict[str, tuple[str, list[Claim]]] = {}
        claims, final, circuits = load.claims, load.final, self._circuits
        for message, receipt in zip(messages, receipts, strict=True):
            key, outcome = message.key, receipt.outcome
            if outcome is Outcome.CONFIRMED:
                queue = message.target.queue.name
                published.append(Published(claims[key], queue, key in final))
                if circuits:
                    circuits.took(queue)
            elif outcome is Outcome.UNSENT:
                unsent.append(claims[key])
            elif outcome is Outcome.UNSENDABLE:
                self._cannot_send(load, key, str(message.headers.get("task")), receipt.detail)
            elif outcome is Outcome.UNKNOWN:
                self._doubts[key] = Published(claims[key], message.target.queue.name, key in final), load.lapses
            else:
                refused.setdefault(message.target.queue.name, (receipt.detail, []))[1].append(claims[key])
        if published:
            self._events.emit("sweep.confirmed", rows=len(published))
            self._writes.append(partial(self._mark, published, load.lapses))
        if unsent:
            self._release(unsent, "the broker did not take them in time")
        for queue, (reason, those) in refused.items():
            delay = circuits.opened(queue, reason, len(those))
            self._writes.append(partial(self._store.postpone, those, delay, refused_by(queue, reason)))

    def _cannot_send(self, load: Load, row_id: int, task: str, reason: str) -> None:
        load.unsendable.append((load.claims[row_id], reason))
        self._events.emit("sweep.unsendable", row_id=row_id, task=task, reason=reason)

    # -- the store's side -------------------------------------------------------------------------------------------

    def _take(self) -> Load:
        """Return the batch that was claimed ahead, or claim one now."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead.result()
        self._finish_writes()
        load = self._side.submit(self._claim).result()
        self._store_outage.is_over()
        return load

    def _claim(self) -> Load:
        lease, store = self._leases.publish, self._store
        untidy = store.tidy(TIDYING)
        said = store.directives()
        self._states.directed(said)
        self._meet(said.placements)
        begun = self._clock()
        batch = store.claim(limit=self._settings.batch_size, claimed_by=self._parts.instance, lease=lease)
        self._states.counted(store.at_quota)
        if batch:
            self._events.emit("sweep.claimed", rows=len(batch))
        until = begun + self._leases.publishing_time.total_seconds()
        load = Load(until, begun + lease.total_seconds(), batch.more, untidy)
        return self._prepare(self._write_out(batch, load), load)

    def _write_out(self, batch: Sequence[ClaimedRow], load: Load) -> Sequence[ClaimedRow]:
        """Make the messages of rows that plain SQL inserted."""
        written = self._scribe.write_out(batch)
        for row, reason in written.failed:
            load.claims[row.id] = row.claim
            self._cannot_send(load, row.id, row.message.task, reason)
        self._release([row.claim for row in written.early], "their queue is known now, and decides where they may go")
        return written.rows

    def _prepare(self, rows: Sequence[ClaimedRow], load: Load) -> Load:
        parts, on_publish = self._parts, self._settings.settle_on == "publish"
        queues, life = parts.queues, parts.message_life
        settlement_queue = queues.settlements.name
        self._meet({row.namespace for row in rows})
        for row in rows:
            claim = load.claims[row.id] = row.claim
            if row.expired:
                load.expired.append(claim)
                continue
            final = row.settle_on == "publish" or (on_publish and row.settle_on is None)
            lives = None if final else life  # what is done when it is published would not be published again
            try:
                message = outgoing(row, queues, settlement_queue=settlement_queue, expiration=lives)
            except Exception as error:  # noqa: BLE001 - whatever plain SQL left in a row ends that row, not the relay
                reason = str(error) if isinstance(error, PublishError) else f"no message can be made of it: {error!r}"
                self._cannot_send(load, row.id, row.message.task, reason)
                continue
            load.messages.append(message)
            if final:
                load.final.add(row.id)
        return load

    def _meet(self, namespaces: Iterable[str]) -> None:
        if unknown := set(namespaces) - self._namespaces:
            self._namespaces |= unknown
            self._new_namespace()

    def _write_behind(self) -> None:
        """Let the second thread tell the store what is noted; wait for what it was told before."""
        if self._behind is not None:
            behind, self._behind = self._behind, None
            behind.result()
        if self._writes:
            self._behind = self._side.submit(self._write)

    def _finish_writes(self) -> None:
        self._write_behind()
        self._write_behind()

    def _write(self) -> None:
        while self._writes:
            self._writes[0]()  # it stays noted when the database is away, and is told again
            self._writes.popleft()

    def _let_go(self, reason: str) -> None:
        """Land what is being published, give back what was claimed ahead, and finish what is to be written."""
        self._land()
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            try:
                claims = list(ahead.result().claims.values())
            except StoreError:
                claims = []
            if claims:
                self._release(claims, reason)
        self._finish_writes()

    def _release(self, claims: list[Claim], reason: str) -> None:
        if claims:
            self._events.emit("sweep.released", rows=len(claims), reason=reason)
            self._writes.append(partial(self._store.release, claims))

    def _mark(self, published: list[Published], lapses: float) -> None:
        self._store.mark_published(published, queue_lease=self._leases.queue)
        self._events.emit("sweep.published", rows=len(published))
        if self._clock() > lapses:
            self._events.emit("sweep.lapsed", rows=len(published))

    def _expire(self, claims: list[Claim]) -> None:
        self._store.expire(claims)
        self._events.emit("sweep.expired", rows=len(claims))
