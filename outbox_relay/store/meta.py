"""What an outbox's tables say of themselves: whose they are, and of which version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from outbox_relay.errors import StoreError
from outbox_relay.store.engine import MIGRATE_HINT
from outbox_relay.store.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from uuid import UUID

    from outbox_relay.store.engine import Database


def check_schema(database: Database) -> int:
    """Return the version of the tables; see :meth:`outbox_relay.store.outbox.Store.check_schema`."""
    with database.begin(reads=True) as connection:
        version = connection.execute(sa.select(database.tables.meta.c.schema_version)).scalar()
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


def outbox_id(database: Database) -> UUID:
    """Return the outbox's own id, made by the first migration."""
    with database.begin(reads=True) as connection:
        found: UUID | None = connection.execute(sa.select(database.tables.meta.c.outbox_id)).scalar()
    if found is None:
        raise StoreError(MIGRATE_HINT)
    return found
