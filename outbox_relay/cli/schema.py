"""``migrate``: the outbox's tables, made or brought up to date."""

from __future__ import annotations

import click

from outbox_relay.cli.output import say
from outbox_relay.cli.session import open_outbox, verb
from outbox_relay.store import migrate as migrations
from outbox_relay.store.engine import open_engine


@click.command()
@click.option("--sql", is_flag=True, help="Print the statements for an empty database instead of running them.")
@click.option(
    "--once-only",
    metavar="URL",
    help="Make, in this database instead, the one table that outbox.once() needs where the effects of tasks are.",
)
@verb
def migrate(sql: bool, once_only: str | None) -> None:
    """Make the outbox's tables, or bring them up to date.

    Migrations only add, and wait for a lock for a few seconds at most: where they do not get it, nothing has changed
    and the shop has not been held up; run it again.
    """
    outbox = open_outbox()
    if once_only is not None:
        engine = open_engine(once_only, named="--once-only")
        settings = outbox.settings
        migrations.migrate(engine, settings.table_prefix, settings.schema, sql=sql, once_only=True)
        engine.dispose()
        if not sql:
            say(f"the table for outbox.once() is in {engine.url.render_as_string(hide_password=True)}")
        return
    engine = outbox.store.engine
    migrations.migrate(engine, outbox.settings.table_prefix, outbox.settings.schema, sql=sql)
    if not sql:
        version = outbox.store.check_schema()
        say(f"the outbox's tables in {engine.url.render_as_string(hide_password=True)} are of version {version}")
