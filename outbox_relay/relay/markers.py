"""Markers: messages that a relay puts on the settlement queue to learn that all before them has been delivered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox_relay.core.settlement import VERSION
from outbox_relay.core.wire import WireError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker of the relay ``owner``; whichever relay receives it tells the owner, through the database."""

    owner: UUID
    id: UUID

    def encode(self) -> bytes:
        return json.dumps({"v": VERSION, "marker": [self.owner.hex, self.id.hex]}).encode()

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Marker | None:
        """Read a document of the settlement queue; None where it is not a marker.

        Raises:
            WireError: it is a broken one.
        """
        if "marker" not in document:
            return None
        try:
            owner, marker = document["marker"]
            return cls(UUID(hex=owner), UUID(hex=marker))
        except (TypeError, ValueError, AttributeError) as error:
            raise WireError(f"not a marker: {error!r}") from error
