"""The one table of a row's states and of the events that move it.

Everything that changes a row's status asks here first; the state diagram in the docs is made from the same table.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from outbox_relay.errors import IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(str, Enum):
    """Where a row stands; stored by its value."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(str, Enum):
    """What can happen to a row."""

    CLAIM = "claim"
    PUBLISHED = "published"
    CONFIRMED = "confirmed"  # published, for a row that settles on publish
    RELEASE = "release"
    UNDELIVERABLE = "undeliverable"
    UNSENDABLE = "unsendable"
    HELD = "held"  # a beacon says that a worker holds it
    RETURNED = "returned"  # released or requeued: the broker has the message again
    EXPIRED_RETURN = "expired_return"  # as before, but the message's time on the broker is over
    DONE = "done"
    FAILED = "failed"
    AGAIN = "again"
    EXHAUSTED = "exhausted"  # to run again, but max_attempts is reached
    RETRY = "retry"
    CANCELLED = "cancelled"  # a worker's report, or the user's ``expires``
    REARM = "rearm"
    VANISHED = "vanished"
    SILENT = "silent"  # published again and again, and no worker ever reported
    CANCEL = "cancel"  # an operator's or owner's word
    REDRIVE = "redrive"


TERMINAL = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED})

_P, _C, _D, _F, _X = Status.PENDING, Status.CLAIMED, Status.DONE, Status.FAILED, Status.CANCELLED

TRANSITIONS: Mapping[tuple[Status, Event], Status] = MappingProxyType(
    {
        (_P, Event.CLAIM): _C,
        (_C, Event.PUBLISHED): _C,
        (_C, Event.CONFIRMED): _D,
        (_C, Event.RELEASE): _P,
        (_C, Event.UNDELIVERABLE): _P,
        (_C, Event.UNSENDABLE): _F,
        (_C, Event.HELD): _C,
        (_C, Event.RETURNED): _C,
        (_C, Event.EXPIRED_RETURN): _P,
        (_P, Event.DONE): _D,
        (_C, Event.DONE): _D,
        (_F, Event.DONE): _D,
        (_C, Event.FAILED): _F,
        (_C, Event.AGAIN): _P,
        (_C, Event.EXHAUSTED): _F,
        (_C, Event.RETRY): _P,
        (_P, Event.CANCELLED): _X,
        (_C, Event.CANCELLED): _X,
        (_C, Event.REARM): _P,
        (_C, Event.VANISHED): _F,
        (_C, Event.SILENT): _F,
        (_P, Event.CANCEL): _X,
        (_C, Event.CANCEL): _X,
        (_F, Event.REDRIVE): _P,
    }
)


def next_status(status: Status, event: Event) -> Status:
    """Return the status that ``event`` leads to.

    Raises:
        IllegalTransition: the event does not fit ``status``.
    """
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise IllegalTransition(f"a row that is {status.value} cannot take the event {event.value!r}") from None


def effective(status: Status, *, holds_token: bool) -> Status:
    """Return the status that a settlement sees.

    A re-armed row is pending but keeps its last token until it is claimed again, so that a report of the
    delivery that was believed lost still counts.
    """
    return Status.CLAIMED if status is Status.PENDING and holds_token else status
