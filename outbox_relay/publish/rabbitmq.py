"""The publisher for RabbitMQ: many messages in flight, each confirmed."""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from typing import TYPE_CHECKING

from outbox_relay.publish.confirms import LARGE, Item, RabbitFlight, open_items, runs
from outbox_relay.publish.link import ChannelLostError, Link, LinkLostError, NoLinkError
from outbox_relay.publish.receipts import Flight, Outcome, Publisher
from outbox_relay.publish.wire import HEADER_FRAME_OVERHEAD, UnsendableError, prepare

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kombu import Connection

    from outbox_relay.events import Events
    from outbox_relay.publish.envelope import Outgoing
    from outbox_relay.publish.receipts import Receipt
    from outbox_relay.publish.wire import Prepared

CHUNK = 32 * 1024  # bytes that leave with one write
WINDOW = 512 * 1024  # bytes in flight: what a broker that blocks may leave in doubt
QUIET = 1.0  # after so many silent seconds one message goes ahead, to learn whether the broker blocks
PATIENCE = 2.0  # seconds to look for a broker that is away
BLOCKED_GRACE = 1.0  # seconds to wait for the confirms of what left just before the broker blocked
KEPT_IN_DOUBT = 2_000
NOT_FOUND = 404
MESSAGE_FAULTS = frozenset((311, 406, 540))  # content too large, precondition failed, not implemented
CONTENT_FAULTS = frozenset((501, 502, 503, 505))  # frames that the broker cannot read
TOO_LARGE = re.compile(r"message size \d+ .*max(?:imum)?(?: message)? size (\d+)")


class RabbitPublisher(Publisher):
    """Publish with confirms and ``mandatory``, up to a window of messages at once.

    A message whose confirm did not come in time is remembered for as long as its channel lives: publishing it again
    waits for that confirm, and does not send it twice.
    """

    def __init__(self, connection: Connection, events: Events | None = None, heartbeat: float = 30.0) -> None:
        self._link = Link(connection, events, heartbeat)
        self._in_doubt: dict[str, Item] = {}
        self._max_size: int | None = None
        self._confirmed_at = float("-inf")
        self._flights: list[RabbitFlight] = []

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def blocked(self) -> bool:
        return self._link.blocked

    # -- publish --------------------------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Outgoing], *, timeout: float) -> list[Receipt]:
        return self.finish(self.begin(messages, timeout=timeout))

    def begin(self, messages: Sequence[Outgoing], *, timeout: float) -> Flight:
        """Send as much as can go without any answer of the broker's: of earlier flights first, then of this one.

        That is nothing where the broker is not known to take messages at this moment.
        """
        deadline = time.monotonic() + timeout
        if self._in_doubt:
            self._forget_lost_doubts()
        flight = RabbitFlight([], [self._take(message) for message in messages], deadline)
        self._flights.append(flight)
        if not self._is_quiet():
            for one in self._flights:
                if not one.has_left:
                    self._send_ahead(one)
                    if not one.has_left:
                        break
        return flight

    def _send_ahead(self, flight: RabbitFlight) -> None:
        """Send the messages that go through the exchange that all are in flight to, up to the first other one."""
        exchanges = {item.message.target.exchange for one in self._flights for item in one.items[:1]}
        link, ready = self._link, []
        if len(exchanges) == 1 and link.connected:
            for item in flight.items:
                if not item.is_new:
                    continue
                target = item.message.target
                known = not target.exchange or (target.exchange, target.queue.name) in link.declared
                if target.exchange not in exchanges or not known or item.size >= LARGE:
                    break
                ready.append(item)
        try:
            self._send(ready, flight.deadline)
        except (LinkLostError, ChannelLostError) as error:
            for item in ready:
                item.detail = str(error)

    def finish(self, flight: Flight) -> list[Receipt]:
        assert isinstance(flight, RabbitFlight)
        items, deadline = flight.items, flight.deadline
        if flight in self._flights:
            self._flights.remove(flight)
        if time.monotonic() >= deadline:
            self._hear_what_is_there()
        losses = 0
        while (waiting := open_items(items)) and (left := deadline - time.monotonic()) > 0:
            in_doubt = any(item.sent for item in waiting)
            try:
                self._link.open(left if in_doubt else min(left, PATIENCE))
                self._hear_while_blocked()
                self._publish_all(waiting, deadline, singly=losses > 1)
                break
            except (LinkLostError, ChannelLostError) as error:
                for item in waiting:
                    item.detail = item.detail or str(error)
                if isinstance(error, NoLinkError):
                    break
                losses += 1
                self._max_size = None
                time.sleep(min(0.02 * 2**losses, 1.0, max(deadline - time.monotonic(), 0)))
        if items and items[-1].outcome is Outcome.CONFIRMED:
            self._confirmed_at = time.monotonic()
        self._remember(items)
        flight.receipts = [item.receipt() for item in items]
        return flight.receipts

    def _hear_what_is_there(self) -> None:
        """The caller had no time to come in time; the broker may have confirmed long since."""
        with contextlib.suppress(LinkLostError, ChannelLostError):
            while self._link.connected and self._link.read(0):
                pass

    def _hear_while_blocked(self) -> None:
        """Only what the broker says ends a block, and whoever calls again and again may have no time for a pulse."""
        if self._link.blocked:
            while self._link.read(0):
                pass
            self._link.beat()

    def _take(self, message: Outgoing) -> Item:
        """Begin with a message, or go on with it where it is in doubt since an earlier call."""
        item = self._in_doubt.pop(message.identity, None) if self._in_doubt else None
        if item is None:
            return Item(message)
        item.message = message
        return item

    def _remember(self, items: Iterable[Item]) -> None:
        self._in_doubt.update((item.message.identity, item) for item in items if item.tag is not None)
        while len(self._in_doubt) > KEPT_IN_DOUBT:
            del self._in_doubt[next(iter(self._in_doubt))]

    def _publish_all(self, items: Sequence[Item], deadline: float, *, singly: bool) -> None:
        self._wait_for(items, deadline)
        items = open_items(items)
        for run in runs((item for item in items if item.tag is None), singly=singly):
            if not self._may_send(deadline):
                break
            try:
                self._publish_run(run, deadline)
            except LinkLostError as error:
                if singly and run[0].sent and error.code in CONTENT_FAULTS:
                    run[0].end(Outcome.UNSENDABLE, f"the broker closed the connection over it: {error}")
                raise
        self._wait_for(items, deadline)

    def _publish_run(self, run: Sequence[Item], deadline: float) -> None:
        """Publish messages that go through one exchange; declare what is missing, and publish once more."""
        self._declare([item for item in run if item.message.target.exchange], again=False)
        self._declare([item for item in run if item.returned], again=True)
        for last in (False, True):
            run = open_items(run)
            if not run or not self._may_send(deadline):
                return
            try:
                self._transmit(run, deadline)
            except ChannelLostError as error:
                run = open_items(run)
                if error.code != NOT_FOUND:
                    self._after_refusal(run, error, deadline)
                    return
                for item in run:
                    item.returned, item.detail = True, str(error)
            run = [item for item in open_items(run) if item.returned and item.tag is None]
            if last:
                for item in run:
                    item.end(Outcome.UNROUTABLE, item.detail)
            else:
                self._declare(run, again=True)

    def _after_refusal(self, run: Sequence[Item], error: ChannelLostError, deadline: float) -> None:
        """The broker closed the channel over one message of ``run``, and does not say over which."""
        if len(run) == 1:
            outcome = Outcome.UNSENDABLE if error.code in MESSAGE_FAULTS else Outcome.REFUSED
            run[0].end(outcome, str(error))
            return
        if match := TOO_LARGE.search(str(error)):
            self._max_size = int(match[1])
        for item in run:
            self._publish_run([item], deadline)

    # -- send and wait --------------------------------------------------------------------------------------------

    def _may_send(self, deadline: float) -> bool:
        return not self._link.blocked and time.monotonic() < deadline

    def _transmit(self, run: Sequence[Item], deadline: float) -> None:
        """Send messages as long as the broker takes them, and wait for their confirms."""
        if len(run) > 1 and self._is_quiet():
            self._transmit(run[:1], deadline)
            run = run[1:]
        self._send(run, deadline)
        self._wait_for(run, deadline)

    def _is_quiet(self) -> bool:
        """Whether the broker has not been heard of for a while: it may block, and say so only to the next message."""
        return time.monotonic() - self._confirmed_at > QUIET

    def _send(self, run: Sequence[Item], deadline: float) -> None:
        """Send messages as long as the broker takes them, and never more than a window beyond what it has confirmed."""
        link = self._link
        if not run:
            return
        frames, confirms, channel_id = link.frames, link.confirms, link.channel_id
        for item in run:
            prepared = item.prepared or self._prepare(item)
            if prepared is None:
                continue
            if not frames.size and not self._may_send(deadline):
                break
            frames.add(channel_id, prepared)
            confirms.sent(item)
            if frames.size >= CHUNK:
                link.flush(deadline)
                while link.read(0):
                    pass
                while confirms.bytes > WINDOW and self._may_send(deadline):
                    self._listen(deadline)
        if frames.size:
            link.flush(deadline)

    def _prepare(self, item: Item) -> Prepared | None:
        """Encode a message, or settle that it cannot be sent."""
        try:
            prepared = prepare(item.message)
            if self._max_size is not None and item.size > self._max_size:
                raise UnsendableError(f"the body has {item.size} bytes, and the broker allows {self._max_size}")
            if len(prepared.header) + HEADER_FRAME_OVERHEAD > self._link.frame_max:
                raise UnsendableError(
                    f"headers and properties take {len(prepared.header)} bytes, and the broker allows a frame of "
                    f"{self._link.frame_max}"
                )
        except UnsendableError as error:
            item.end(Outcome.UNSENDABLE, str(error))
            return None
        item.prepared = prepared
        return prepared

    def _wait_for(self, items: Iterable[Item], deadline: float) -> None:
        """Read until none of ``items`` is in flight; while the broker blocks, not for long."""
        in_flight = deque(item for item in items if item.tag is not None)
        if not in_flight:
            return
        while in_flight and (now := time.monotonic()) < deadline:
            if self._link.blocked:
                deadline = min(deadline, now + BLOCKED_GRACE)
            self._listen(deadline)
            while in_flight and in_flight[0].tag is None:
                in_flight.popleft()
        self._confirmed_at = time.monotonic()

    def _listen(self, deadline: float) -> None:
        if not self._link.read(min(max(deadline - time.monotonic(), 0), 1.0)):
            self._link.beat()

    def _declare(self, items: Sequence[Item], *, again: bool) -> None:
        """Declare the queues that ``items`` are meant for; settle those whose declaration the broker refuses.

        A queue behind the default exchange is declared only when a message to it came back: then it is missing, and the
        declaration cannot contradict a queue that is there.
        """
        refusals: dict[tuple[str, str], str | None] = {}
        for item in items:
            target = item.message.target
            key = (target.exchange, target.queue.name)
            if (not again and key in self._link.declared) or not target.declares:
                continue
            if key not in refusals:
                refusals[key] = self._link.declare(target.queue)
                if refusals[key] is None:
                    self._link.declared.add(key)
            if (refusal := refusals[key]) is not None:
                item.end(Outcome.REFUSED, f"queue {target.queue.name!r} cannot be declared: {refusal}")

    # -- look after the connection --------------------------------------------------------------------------------

    def pulse(self) -> None:
        link = self._link
        try:
            if link.connected or link.is_time_to_try:
                link.open(0)
                while link.read(0):
                    pass
                link.beat()
        except ChannelLostError:
            pass  # the next publish meets a new channel
        except NoLinkError:
            pass  # told as an event; the next pulse tries again
        except LinkLostError:
            with contextlib.suppress(NoLinkError):
                link.open(0)

    def _forget_lost_doubts(self) -> None:
        """Forget messages whose confirm can no longer come, for their channel is gone."""
        lost = [key for key, item in self._in_doubt.items() if item.tag is None and item.outcome is None]
        for key in lost:
            del self._in_doubt[key]

    def late(self) -> list[Receipt]:
        known = [key for key, item in self._in_doubt.items() if item.tag is None]
        return [self._in_doubt.pop(key).receipt() for key in known]

    def close(self) -> None:
        self._link.close()
        self._in_doubt.clear()
        self._flights.clear()
