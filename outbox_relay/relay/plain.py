"""Rows that plain SQL inserted get their message when they are first claimed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from outbox_relay.errors import PublishError
from outbox_relay.publish.plain import is_plain, message_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_relay.core.row import ClaimedRow, Message
    from outbox_relay.relay.parts import Parts


@dataclass(slots=True)
class Written:
    """Rows with their messages; those that no message can be made of, with why; and those claimed too early.

    Where a row may go depends on its queue, which nobody knew when it was claimed.
    """

    rows: list[ClaimedRow]
    failed: list[tuple[ClaimedRow, str]] = field(default_factory=list)
    early: list[ClaimedRow] = field(default_factory=list)


class Scribe:
    """Writes messages out. Called in the thread that claims."""

    def __init__(self, parts: Parts) -> None:
        self._app = parts.app
        self._store = parts.store
        self._settings = parts.settings
        self._events = parts.events
        self._knows_tasks = False

    def write_out(self, rows: Sequence[ClaimedRow]) -> Written:
        """Give each of the rows that were just claimed its message."""
        written = Written(list(rows))
        if not any(map(is_plain, rows)):
            return written
        self._meet_tasks()
        plain = [row for row in rows if is_plain(row)]
        arguments = self._store.plain.arguments([row.id for row in plain])
        made: dict[int, Message] = {}
        for row in plain:
            try:
                args, kwargs = arguments.get(row.id, (None, None))
                made[row.id] = message_of(self._app, row, args, kwargs, max_bytes=self._settings.max_body_bytes)
            except PublishError as error:
                written.failed.append((row, str(error)))
            except Exception as error:  # noqa: BLE001 - of whatever kind: it ends the row, not the relay
                written.failed.append((row, f"no message can be made of it: {error!r}"))
        self._store.plain.write([(row.claim, made[row.id]) for row in plain if row.id in made])
        placed = self._store.directives().placements
        written.early = [row for row in plain if row.id in made and row.namespace in placed]
        kept = (row for row in rows if not is_plain(row) or (row.id in made and row.namespace not in placed))
        written.rows = [replace(row, message=made.get(row.id, row.message)) for row in kept]
        return written

    def _meet_tasks(self) -> None:
        """Import the app's tasks, once: their options say which queue and serializer a message has."""
        if not self._knows_tasks:
            self._knows_tasks = True
            try:
                self._app.loader.import_default_modules()
            except Exception as error:  # noqa: BLE001 - the user's modules; a relay may run without them
                text = f"the app's tasks cannot be imported ({error!r}): rows of plain SQL are sent by name alone"
                self._events.emit("relay.warning", text=text)
