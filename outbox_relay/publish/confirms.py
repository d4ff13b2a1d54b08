"""Which messages are in flight on a channel, and what the broker says of them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from outbox_relay.publish.receipts import Flight, Outcome, Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outbox_relay.publish.envelope import Outgoing
    from outbox_relay.publish.wire import Prepared


LARGE = 1024 * 1024  # a body of this size travels alone: a refusal for its size closes the channel under the others


class Item:
    """A message on its way: ``outcome`` is None until something is known for good.

    ``sent``: some of its bytes may have left. ``returned``: the broker found no queue for it. ``tag``: its delivery
    tag while it is in flight.
    """

    __slots__ = ("detail", "message", "outcome", "prepared", "returned", "sent", "size", "tag")

    def __init__(self, message: Outgoing) -> None:
        self.message = message
        self.size = len(message.body)
        self.prepared: Prepared | None = None
        self.outcome: Outcome | None = None
        self.detail = ""
        self.sent = False
        self.returned = False
        self.tag: int | None = None

    @property
    def is_new(self) -> bool:
        """Whether nothing of it has left yet, and nothing is known of it: an earlier call may have begun with it."""
        return self.outcome is None and not self.sent and not self.returned

    def end(self, outcome: Outcome, detail: str = "") -> None:
        self.outcome, self.detail = outcome, detail

    def receipt(self) -> Receipt:
        open_outcome = Outcome.UNKNOWN if self.sent else Outcome.UNSENT
        return Receipt(self.message.key, self.outcome or open_outcome, self.detail)


@dataclass(slots=True, eq=False)
class RabbitFlight(Flight):
    """Messages that are published together, each with what is known of it."""

    items: list[Item]
    deadline: float

    @property
    def has_left(self) -> bool:
        """Whether every message is in flight, or has come to an end."""
        return all(item.tag is not None or item.outcome is not None for item in self.items)


class Confirms:
    """The delivery tags of one channel in confirm mode.

    Acknowledgements come out of order and for many at once, and a message that comes back is acknowledged as well:
    so this is a table of open tags, and nothing here waits for the last one.
    """

    def __init__(self) -> None:
        self._open: dict[int, Item] = {}
        self._last = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def sent(self, item: Item) -> None:
        """Note that ``item`` is the channel's next message."""
        self._last += 1
        item.tag = self._last
        item.sent = True
        item.returned = False
        self._open[self._last] = item
        self.bytes += item.size

    def acknowledged(self, tag: int, multiple: bool) -> None:
        for item in self._close(tag, multiple=multiple):
            if item.returned:
                item.sent = False  # it came back: the broker surely does not have it
            else:
                item.outcome = Outcome.CONFIRMED

    def refused(self, tag: int, multiple: bool) -> None:
        for item in self._close(tag, multiple=multiple):
            item.end(Outcome.REFUSED, "the broker refused it (basic.nack): its queue is full or failing")

    def returned(self, identity: str, text: str) -> None:
        """Note that a message came back; its acknowledgement follows."""
        for item in self._open.values():
            if not item.returned and item.message.identity == identity:
                item.returned, item.detail = True, text
                return

    def abandon(self) -> None:
        """The channel is gone: nobody will say any more what became of these."""
        for item in self._open.values():
            item.tag = None
        self._open.clear()
        self._last = self.bytes = 0

    def _close(self, tag: int, *, multiple: bool) -> list[Item]:
        if not multiple:
            item = self._open.pop(tag, None)
            closed = [] if item is None else [item]
        else:
            closed = [item for _, item in takewhile(lambda one: one[0] <= tag, self._open.items())]  # tags ascend
            for item in closed:
                del self._open[item.tag]  # type: ignore[arg-type]  # it is in flight
        for item in closed:
            item.tag = None
            self.bytes -= item.size
        return closed


def open_items(items: Iterable[Item]) -> list[Item]:
    return [item for item in items if item.outcome is None]


def runs(items: Iterable[Item], *, singly: bool = False) -> list[list[Item]]:
    """Part messages into runs that are confirmed one after the other.

    A run goes through one exchange, so that a missing exchange closes the channel under its own messages alone; a large
    message is a run of its own for the same reason. Within a queue the order stays.
    """
    parted: list[list[Item]] = []
    current: dict[str, list[Item]] = {}
    for item in items:
        exchange = item.message.target.exchange
        if singly or item.size >= LARGE:
            parted.append([item])
            current.pop(exchange, None)
        elif exchange in current:
            current[exchange].append(item)
        else:
            current[exchange] = [item]
            parted.append(current[exchange])
    return parted
