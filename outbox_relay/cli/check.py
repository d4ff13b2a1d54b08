"""``check``: whether everything that the outbox needs is there, and what to do where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import sqlalchemy as sa
from kombu.exceptions import OperationalError as BrokerError
from kombu.utils.url import maybe_sanitize_url
from rich.text import Text

from outbox_relay.cli.advice import Finding, Level, advise, fault, fine, warning
from outbox_relay.cli.output import console, print_json, visible
from outbox_relay.cli.session import command, explain, first_line, json_option, open_outbox, require_broker_driver, verb
from outbox_relay.cli.staged import staging
from outbox_relay.errors import OutboxError, SettingsError
from outbox_relay.settings import ENABLE_HINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery

    from outbox_relay.outbox import Outbox
    from outbox_relay.settings import Settings

BROKER_TIMEOUT = 5.0
SKEW = 5.0
COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAULT: "bold red"}


@click.command(short_help="Look at all that is needed, and name the cure of what is wrong.")
@json_option
@verb
def check(as_json: bool) -> None:
    """Look at settings, database, tables, broker and tasks, and name the cure of what is wrong.

    Ends with 1 where something keeps the outbox from working; warnings do not change the exit code.
    """
    outbox = open_outbox()
    findings = [*modules(outbox.app), *examine(outbox)]
    faults = sum(one.level is Level.FAULT for one in findings)
    if as_json:
        print_json({"ok": not faults, "findings": findings})
    else:
        show(findings)
    click.get_current_context().exit(1 if faults else 0)


def modules(app: Celery) -> Iterator[Finding]:
    """Import what a worker would; nothing is said of modules that can be."""
    try:
        app.loader.import_default_modules()
    except Exception as error:  # noqa: BLE001 - a module may raise whatever it likes
        said = f"{type(error).__name__}: {first_line(error)}"
        yield fault("modules", f"a module of the app cannot be imported: {said}", "correct imports or include")


def examine(outbox: Outbox) -> Iterator[Finding]:
    """Look at everything; a fault in one part does not keep the others from being looked at."""
    settings: Settings | None = None
    usable = False
    try:
        settings = outbox.settings
    except SettingsError as error:
        yield fault("settings", str(error), "correct the Celery configuration")
    else:
        yield fine("settings", f"the outbox {settings.name}")
        if not settings.enabled:
            yield warning("settings", "the outbox is dormant: nothing is staged, published or settled", ENABLE_HINT)
        found = list(database(outbox))
        usable = not any(one.level is Level.FAULT for one in found)
        yield from found
        if usable:
            yield from staging(outbox)
    yield from broker(outbox.app)
    yield from advise(outbox.app, settings)
    if usable and outbox.enabled:
        yield from processes(outbox)


# -- the database -------------------------------------------------------------------------------------------------


def database(outbox: Outbox) -> Iterator[Finding]:
    """Look at the database and the tables in it."""
    try:
        with outbox.store.engine.connect() as connection:
            yield from _server(outbox, connection)
    except (sa.exc.SQLAlchemyError, ImportError, OutboxError) as error:
        if (text := explain(error)) is None:
            raise
        yield fault("database", text, "correct outbox_database_url, or bring the database up")
        return
    try:
        version = outbox.store.check_schema()
    except OutboxError as error:
        text = explain(error) or str(error)
        yield fault("tables", text, f"run {command('migrate')}, or install the outbox_relay that fits them")
    else:
        yield fine("tables", f"version {version}, prefix {outbox.settings.table_prefix}")


def _server(outbox: Outbox, connection: sa.Connection) -> Iterator[Finding]:
    dialect = connection.dialect
    version = ".".join(str(part) for part in dialect.server_version_info or ())
    where = connection.engine.url.render_as_string(hide_password=True)
    yield fine("database", f"{dialect.name} {version} at {where}")
    if dialect.name == "sqlite" and (mode := connection.exec_driver_sql("PRAGMA journal_mode").scalar()) != "wal":
        yield warning(
            "database",
            f"the file's journal mode is {mode}: writers and readers lock each other out",
            "let the outbox open it once (outbox migrate), on a file system that is local",
        )
    if dialect.name == "postgresql":
        yield from _pooled(connection, outbox.settings)


def _pooled(connection: sa.Connection, settings: Settings) -> Iterator[Finding]:
    if connection.info.get("outbox_pooled") and settings.wake == "notify" and settings.listen_url is None:
        yield warning(
            "database",
            "there is a connection pooler before it, behind which LISTEN may hear nothing: the relay would only poll",
            "set outbox_listen_url to the server's own address, or outbox_wake = 'off'",
        )


# -- the broker ---------------------------------------------------------------------------------------------------


def broker(app: Celery) -> Iterator[Finding]:
    """Connect to the broker."""
    address = maybe_sanitize_url(str(app.conf.broker_write_url or app.conf.broker_url))
    try:
        require_broker_driver(app)
        with app.connection_for_write() as connection:
            yield from _connect(connection, address)
    except (ImportError, SettingsError) as error:
        yield fault("broker", explain(error) or first_line(error), "install what is missing")
    except KeyError as error:  # kombu's word for a transport that it does not have
        yield fault("broker", f"{address} cannot be used: {error.args[0]}", "correct broker_url")


def _connect(connection: Any, address: str) -> Iterator[Finding]:
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=BROKER_TIMEOUT)
    except (BrokerError, *connection.connection_errors, *connection.channel_errors, OSError, ImportError) as error:
        yield fault("broker", f"{address} cannot be reached: {first_line(error)}", "correct broker_url, or bring it up")
        return
    properties = getattr(connection.connection, "server_properties", None) or {}
    product = f"{properties.get('product', '')} {properties.get('version', '')}".strip()
    yield fine("broker", f"{product or connection.transport.driver_type} at {address}")


# -- who is there -------------------------------------------------------------------------------------------------


def processes(outbox: Outbox) -> Iterator[Finding]:
    """Look for live relays and workers, and for what they could not do."""
    store = outbox.store
    relays = [one.hostname for one in store.relays() if one.live and not one.waits]
    workers = [one.hostname for one in store.workers(outbox.settings.worker_ttl) if one.live]
    waiting = [one.hostname for one in store.relays() if one.live and one.waits]
    if waiting:
        cure = "see what is said of the broker here, and in the relay's log"
        yield warning("relays", f"waiting for the broker: {', '.join(sorted(set(waiting)))}", cure)
    if relays:
        yield fine("relays", f"{len(relays)} live: {', '.join(sorted(set(relays)))}")
    elif not waiting:
        yield warning("relays", "no relay lives: nothing is published", f"run {command('relay')}")
    if workers:
        yield fine("workers", f"{len(workers)} report: {', '.join(sorted(workers))}")
    else:
        yield warning(
            "workers",
            "no worker reports: rows are published, and stay claimed",
            "call Outbox(app) on the workers' app and start them (for those that cannot: outbox_settle_on = 'publish')",
        )
    with store.engine.connect() as connection:
        aside = connection.execute(sa.select(sa.func.count()).select_from(outbox.tables.aside)).scalar_one()
    if aside:
        name = outbox.tables.aside.fullname
        yield warning("reports", f"{aside} reports of workers could not be applied", f"see their reasons in {name}")


# -- output -------------------------------------------------------------------------------------------------------


def show(findings: Iterable[Finding]) -> None:
    """Print findings for people."""
    out = console()
    for one in findings:
        line = Text.assemble((f"{one.level.value:8}", COLOURS[one.level]), (f"{one.subject:10}", "bold"))
        line.append(visible(one.text))
        out.print(line, soft_wrap=True)
        if one.cure:
            out.print(Text(f"{'':18}cure: {visible(one.cure)}", style="dim"), soft_wrap=True)
