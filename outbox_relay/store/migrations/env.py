"""What Alembic runs for each command: the tables and the connection come from ``outbox_relay.store.migrate``."""

from __future__ import annotations

from alembic import context
from sqlalchemy.schema import CreateSchema

from outbox_relay.store.migrate import version_table
from outbox_relay.store.sql import POSTGRESQL

tables = context.config.attributes["tables"]
options = {
    "target_metadata": tables.metadata,
    "version_table": version_table(tables, once_only=context.config.attributes["once_only"]),
    "version_table_schema": tables.metadata.schema,
    "tables": tables,
}

if context.is_offline_mode():
    context.configure(
        dialect_name=context.config.attributes["dialect"],
        literal_binds=True,
        as_sql=True,
        transactional_ddl=True,
        output_buffer=context.config.output_buffer,
        **options,
    )
    with context.begin_transaction():
        if context.config.attributes["dialect"] == POSTGRESQL:
            context.execute("SET LOCAL lock_timeout = '5s'")
            if tables.metadata.schema is not None:
                context.execute(CreateSchema(tables.metadata.schema, if_not_exists=True))
        context.run_migrations()
else:
    context.configure(connection=context.config.attributes["connection"], transactional_ddl=True, **options)
    with context.begin_transaction():
        context.run_migrations()
