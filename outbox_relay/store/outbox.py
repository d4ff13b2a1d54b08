"""The store: everything that a relay and an operator do to the outbox's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from outbox_relay.errors import StoreError
from outbox_relay.store import migrate
from outbox_relay.store.claims import Claims
from outbox_relay.store.engine import MIGRATE_HINT, Database, open_engine
from outbox_relay.store.schema import SCHEMA_VERSION, Tables, build
from outbox_relay.store.settling import Rules, Settled, Settling

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from outbox_relay.core.row import Batch, Claim, Published
    from outbox_relay.core.settlement import Policy, Settlement
    from outbox_relay.events import Events
    from outbox_relay.settings import Settings


class Store:
    """One outbox in one database. Its methods may be called from any thread, but only one thread claims.

    Every method is a transaction of its own and raises :class:`outbox_relay.errors.StoreAway` when the database is
    away: nothing has happened then, or (where the connection broke at the commit) all of it; it may be called again.
    """

    def __init__(self, engine: sa.Engine, tables: Tables, events: Events | None = None) -> None:
        self.engine = engine
        self.tables = tables
        self._db = Database(engine, tables)
        self._claims = Claims(self._db)
        self._settling = Settling(self._db)

    @classmethod
    def open(cls, settings: Settings, events: Events | None = None) -> Store:
        """Open the database that the settings name; it is reached at the first use."""
        return cls(open_engine(settings.database_url), build(settings.table_prefix, settings.schema), events)

    def close(self) -> None:
        self.engine.dispose()

    # -- the schema --------------------------------------------------------------------------------------------------

    def check_schema(self) -> int:
        """Return the version of the tables.

        Raises:
            StoreError: there are none, or they are more than one version older or newer than this code.
        """
        meta = self.tables.meta
        with self._db.begin() as connection:
            version = connection.execute(sa.select(meta.c.schema_version)).scalar()
        if version is None:
            raise StoreError(MIGRATE_HINT)
        if version < SCHEMA_VERSION - 1:
            raise StoreError(
                f"the outbox's tables are of version {version}, this outbox_relay needs {SCHEMA_VERSION} "
                "(or the one before): run 'outbox migrate'"
            )
        if version > SCHEMA_VERSION + 1:
            raise StoreError(
                f"the outbox's tables are of version {version}, this outbox_relay knows {SCHEMA_VERSION} "
                "(and the one after): upgrade outbox_relay"
            )
        return int(version)

    def migrate(self) -> None:
        """Bring the tables to this version; see :func:`outbox_relay.store.migrate.migrate`."""
        migrate.migrate(self.engine, self.tables.prefix, self.tables.metadata.schema)

    def outbox_id(self) -> UUID:
        """The outbox's own id, made by the first migration."""
        with self._db.begin() as connection:
            found: UUID | None = connection.execute(sa.select(self.tables.meta.c.outbox_id)).scalar()
        if found is None:
            raise StoreError(MIGRATE_HINT)
        return found

    # -- the sweep ---------------------------------------------------------------------------------------------------

    def claim(self, *, limit: int, claimed_by: UUID, lease: timedelta) -> Batch:
        """Claim up to ``limit`` due rows, fairly between namespaces, for ``lease``; oldest first."""
        return self._claims.claim(limit=limit, claimed_by=claimed_by, lease=lease)

    def reset_watermark(self) -> None:
        """Let the next claim look at every due row, however old."""
        self._claims.reset_watermark()

    def next_due_in(self) -> timedelta | None:
        """How long until the next pending row is due (zero: one is); None where nothing is pending."""
        return self._claims.next_due_in()

    def mark_published(self, published: Sequence[Published], *, queue_lease: timedelta) -> int:
        """The broker has confirmed the messages. Returns how many rows still had their claim.

        The others were settled already (a quick worker), or their claim was over.
        """
        return self._claims.mark_published(published, queue_lease=queue_lease)

    def release(self, claims: Sequence[Claim]) -> int:
        """Give back claims whose messages were surely not sent: due again at once. Returns how many were."""
        return self._claims.release(claims)

    def postpone(self, claims: Sequence[Claim], delay: timedelta, reason: str) -> int:
        """Rows that the broker does not take wait for ``delay`` and spend no attempt. Returns how many do."""
        return self._claims.postpone(claims, delay, reason)

    def fail_unsendable(self, failures: Sequence[tuple[Claim, str]]) -> int:
        """Rows that can never be sent fail, each with its reason. Returns how many did."""
        return self._claims.fail_unsendable(failures)

    def expire(self, claims: Sequence[Claim]) -> int:
        """Rows whose own ``expires`` has passed are cancelled. Returns how many were."""
        return self._claims.expire(claims)

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(
        self,
        settlements: Sequence[Settlement],
        policy: Policy,
        *,
        message_life: timedelta | None,
        queue_lease: timedelta,
    ) -> Settled:
        """Apply what workers report, in one transaction; reports of one row in their order.

        ``message_life`` is how long a message lives on the broker, None where it lives for ever. A report that the
        database refuses is set aside, the rest is applied all the same.
        """
        return self._settling.settle(settlements, Rules(policy, message_life, queue_lease))

    def set_aside(self, body: bytes, reason: str) -> None:
        """Keep a report that cannot be read, with the reason."""
        self._settling.set_aside(body, reason)

    # -- the clock ---------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The database's clock."""
        return self._claims.now()
