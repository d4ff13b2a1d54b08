"""Where rows are staged: a connection with a transaction of the caller's, whatever kind of connection that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox_relay.store.raw import Connection

OUTSIDE = "staging outside a transaction is refused: "


@dataclass(frozen=True, slots=True)
class Place:
    """A connection in a transaction that a rollback would undo."""

    connection: Connection
    two_phase: bool = False
