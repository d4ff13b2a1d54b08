"""``migrate``: the outbox's tables, made or brought up to date."""

from __future__ import annotations

import click
import sqlalchemy as sa

from outbox_relay.cli.output import say
from outbox_relay.cli.session import open_outbox, verb
from outbox_relay.store import migrate as migrations


@click.command()
@click.option("--sql", is_flag=True, help="Print the statements for an empty database instead of running them.")
@verb
def migrate(sql: bool) -> None:
    """Make the outbox's tables, or bring them up to date.

    Migrations only add, and wait for a lock for a few seconds at most: where they do not get it, nothing has changed
    and the shop has not been held up; run it again.
    """
    outbox = open_outbox()
    if sql:
        dialect = sa.make_url(outbox.settings.database_url).get_backend_name()
        click.echo(migrations.migration_sql(dialect, outbox.tables).strip())
        return
    revision = migrations.migrate(outbox.store.engine, outbox.tables)
    where = outbox.store.engine.url.render_as_string(hide_password=True)
    say(f"the outbox's tables in {where} are up to date (revision {revision})")
