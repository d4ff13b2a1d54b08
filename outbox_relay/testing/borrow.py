"""The SQLAlchemy side of whatever a test stages on, in the transaction that is open there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from outbox_relay.staging.connections import accept

if TYPE_CHECKING:
    import sqlalchemy as sa


def borrow(given: Any) -> sa.Connection:
    """Return the connection of a session, scoped session or connection.

    Raises:
        StagingError: it is none of them.
    """
    target: Any = accept(given)
    return target.connection() if isinstance(target, Session) else target
