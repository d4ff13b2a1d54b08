"""What publishing is, whatever the broker: messages go in, one receipt a message comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_relay.publish.envelope import Outgoing


class Outcome(Enum):
    """What became of a message."""

    CONFIRMED = "confirmed"  # the broker has it, and said so
    UNROUTABLE = "unroutable"  # no queue takes it, although its queue was declared again
    REFUSED = "refused"  # the broker refuses it, or the declaration of its queue
    UNSENDABLE = "unsendable"  # no broker would take this message, now or later
    UNSENT = "unsent"  # it surely has not left
    UNKNOWN = "unknown"  # it has left, and nobody said what became of it


@dataclass(slots=True)
class Receipt:
    """What became of the message ``key``; ``detail`` says why it was not confirmed."""

    key: int
    outcome: Outcome
    detail: str = ""


@dataclass(slots=True)
class Flight:
    """Messages that are being published. ``receipts`` say what became of them, once that is known."""

    receipts: list[Receipt]


class Publisher(ABC):
    """One connection to a broker, for publishing. One thread at a time; opened lazily in the process that uses it."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the connection is open, as far as is known."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """Whether the broker has said that it takes no messages at present (it is out of memory or disk)."""

    @abstractmethod
    def publish(self, messages: Sequence[Outgoing], *, timeout: float) -> list[Receipt]:
        """Publish and return one receipt a message, in their order, within about ``timeout`` seconds. Never raises
        for what the broker or the network does."""

    def begin(self, messages: Sequence[Outgoing], *, timeout: float) -> Flight:
        """Begin to publish, so that other work can be done, or the next messages begun, before the broker has answered.

        Each flight is to be finished, the first one first; its time runs from here. A publisher that has no use for
        this has done all of it when it returns.
        """
        return Flight(self.publish(messages, timeout=timeout))

    def finish(self, flight: Flight) -> list[Receipt]:
        """Do what is left of a flight; return one receipt a message, as :meth:`publish` does."""
        return flight.receipts

    @abstractmethod
    def pulse(self) -> None:
        """Look after an idle connection. Call it at least every second: it sends heartbeats, learns that the broker
        blocks or has gone away, and makes a dead connection anew. It takes at most a few seconds, and never raises
        for what the broker does."""

    def late(self) -> list[Receipt]:
        """Return, once, what has been learned since of messages that :meth:`publish` called unknown.

        Call it after :meth:`pulse`. A message whose connection died is unknown for good, and told as that.
        """
        return []

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the publisher can be used again, and then opens another."""
