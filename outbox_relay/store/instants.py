"""PostgreSQL's instants that Python has no ``datetime`` for, which plain SQL may have left in a row."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import psycopg
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzLoader

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer

#: A day within what a ``datetime`` can be, so that they can be told in any time zone.
EARLIEST = datetime(1, 1, 2, tzinfo=timezone.utc)
LATEST = datetime(9999, 12, 30, tzinfo=timezone.utc)


class Bounded(Loader):
    """Reads ``infinity``, ``-infinity``, and years that are too far away, as the latest or the earliest instant.

    psycopg raises at such a value, and a list of a hundred rows would fail for one of them. For results in text form:
    those in binary form are of claims, which take no such row.
    """

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        adapters = psycopg.adapters  # the connection's own map has this class
        self._usual = (adapters.get_loader(oid, Format.TEXT) or TimestamptzLoader)(oid, context)

    def load(self, data: Buffer) -> datetime:
        try:
            instant: datetime = self._usual.load(data)
        except psycopg.DataError:
            text = bytes(data)
            return EARLIEST if text.startswith((b"-", b"0001")) or text.endswith(b"BC") else LATEST
        return instant


def read_any_instant(connection: psycopg.Connection) -> None:
    """Let a connection read whatever a ``timestamptz`` may be."""
    connection.adapters.register_loader("timestamptz", Bounded)
