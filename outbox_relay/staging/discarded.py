"""Sessions that are closed without a commit after a task was staged in them: it is gone, and somebody should know.

Before tasks were marked they were sent at the call, whatever became of the session: code that never commits worked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from outbox_relay.events import Events

STAGED = "outbox_relay.staged"  # in Session.info: how many tasks were staged, and whom to tell


def watch_for_discard(session: Session, events: Events) -> None:
    """Count a task that was staged in the session's transaction, and tell if the session just closes."""
    for name, listener in (
        ("after_commit", _decided),
        ("after_rollback", _decided),
        ("after_transaction_end", _ended),
    ):
        if not event.contains(Session, name, listener):
            event.listen(Session, name, listener)
    count, _ = session.info.get(STAGED) or (0, None)
    session.info[STAGED] = count + 1, events


def _decided(session: Session) -> None:
    if not session.in_nested_transaction():  # a savepoint decides nothing
        session.info.pop(STAGED, None)


def _ended(session: Session, transaction: Any) -> None:
    if transaction.parent is None and STAGED in session.info:
        count, events = session.info.pop(STAGED)
        events.emit("staging.discarded", rows=count)
