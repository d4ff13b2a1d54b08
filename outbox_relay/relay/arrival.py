"""What a relay waits for before its loops start: its database, then its broker."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from kombu.exceptions import KombuError

from outbox_relay.core.processes import WAITS
from outbox_relay.errors import PublishError, StoreAway
from outbox_relay.publish.publisher import open_publisher
from outbox_relay.relay.outages import Outage
from outbox_relay.relay.ownership import NotTheOwnerError, own

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from outbox_relay.relay.parts import Parts

ANSWERS = 2  # refusals in a row of a database that takes connections: it may just have come up between two looks


class Arrival:
    """The start of a relay, until it has all that it works with.

    ``told_to_stop`` waits for so many seconds and tells whether the relay is to end; ``sign`` puts it into the
    register of relays, as one whose loops are those named.
    """

    def __init__(self, parts: Parts, told_to_stop: Callable[[float], bool], sign: Callable[[str], None]) -> None:
        self._parts = parts
        self._told_to_stop = told_to_stop
        self._sign = sign
        self._sign_at = float("-inf")
        self.signed = False

    def find_store(self) -> UUID | None:
        """Wait for the database; return the outbox's id, or None where the relay was told to stop meanwhile.

        Raises:
            StoreError: its tables do not fit; or (StoreAway) it is there, but refuses the user, password or name.
        """
        store, answers = self._parts.store, 0
        outage = Outage(self._parts.events, "store")
        while True:
            try:
                store.check_schema()
                outbox_id = store.outbox_id()
            except StoreAway as error:
                answers = 0 if store.may_come_back(error) else answers + 1
                if answers == ANSWERS:
                    raise
                if self._waits(outage, error, silently=answers > 0):
                    return None
            else:
                outage.is_over()
                return outbox_id

    def own_name(self, outbox_id: UUID, *, take_over: bool) -> bool:
        """Wait for the broker, and make sure that the outbox's name is ours; false where we are to stop meanwhile.

        Raises:
            NotTheOwnerError: another outbox owns it.
        """
        app, events = self._parts.app, self._parts.events
        connection = app.connection_for_write()
        publisher = open_publisher(app)
        outage = Outage(events, "broker", broker=connection.as_uri())
        lost = (*connection.connection_errors, *connection.channel_errors, KombuError, OSError, PublishError)
        try:
            while True:
                try:
                    own(connection, publisher, self._parts.settings.name, outbox_id, take_over=take_over)
                except NotTheOwnerError:
                    raise
                except lost as error:
                    connection.collect()
                    self._sign_waiting()
                    if self._waits(outage, error):
                        return False
                else:
                    outage.is_over()
                    return True
        finally:
            publisher.close()
            connection.release()

    def _waits(self, outage: Outage, error: Exception, *, silently: bool = False) -> bool:
        """Wait for the next try; tell whether there is to be none."""
        if silently:
            return self._told_to_stop(0.2)
        first = not outage.on
        pause = outage.goes_on(error)
        if first:
            self._parts.events.emit("relay.waits", instance=self._parts.instance)
        return self._told_to_stop(pause)

    def _sign_waiting(self) -> None:
        if time.monotonic() >= self._sign_at:
            with contextlib.suppress(StoreAway):
                self._sign(WAITS)
                self.signed = True
                self._sign_at = time.monotonic() + self._parts.leases.heartbeat.total_seconds()
