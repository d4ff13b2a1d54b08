"""The rows of one claim on their way through a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_relay.core.row import Claim
    from outbox_relay.publish.envelope import Outgoing
    from outbox_relay.publish.receipts import Flight


@dataclass(slots=True)
class Load:
    """The rows of one claim, made ready to be published.

    Instants are the relay's monotonic ones: publishing stops at ``until``, and at ``lapses`` the claims are over.
    ``more``: further rows are due. ``untidy``: there are more rows to be taken out of the way of claims.
    """

    until: float
    lapses: float
    more: bool
    untidy: bool = False
    claims: dict[int, Claim] = field(default_factory=dict)
    final: set[int] = field(default_factory=set)
    messages: list[Outgoing] = field(default_factory=list)
    expired: list[Claim] = field(default_factory=list)
    unsendable: list[tuple[Claim, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.claims)


class Air(NamedTuple):
    """A load that is being published, as far as the broker takes it."""

    load: Load
    messages: Sequence[Outgoing]
    flight: Flight
