"""What every verb needs: the outbox that ``-A`` names, and errors told in a sentence instead of a traceback."""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click
import sqlalchemy as sa
from amqp import AMQPError
from kombu.exceptions import OperationalError as BrokerError

from outbox_relay.cli.output import visible
from outbox_relay.errors import OutboxError, SettingsError, StoreAway
from outbox_relay.outbox import Outbox, outbox_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from outbox_relay.store.outbox import Store

F = TypeVar("F", bound="Callable[..., Any]")
REDIS = ("redis", "rediss", "sentinel")
EXTRAS = {"psycopg": "postgresql", "redis": "redis"}


class Refused(click.ClickException):
    """Something was refused, failed or was not found; the verb ends with 1."""

    exit_code = 1

    def format_message(self) -> str:
        return visible(self.message, lines=True)


def verb(function: F) -> F:
    """Make a function the body of a verb: what goes wrong in it is told in a sentence, with exit code 1."""

    @functools.wraps(function)
    def told(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None
        except (OutboxError, sa.exc.SQLAlchemyError, BrokerError, AMQPError, ImportError, KeyError) as error:
            if (text := explain(error)) is None:
                raise
            raise Refused(text) from error

    return told  # type: ignore[return-value]  # functools.wraps keeps the signature


def json_option(function: F) -> F:
    """Give a reading verb its ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")(function)


def command(verb_line: str) -> str:
    """Return the whole command line of a verb, for the app at hand."""
    return f"celery -A {_app_name() or 'proj'} outbox {verb_line}"


def _app_name() -> str | None:
    """The app as it was named on the command line; click itself may know only what was loaded by that name."""
    for option, value in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        if option in ("-A", "--app"):
            return value
        for prefix in ("--app=", "-A"):
            if option.startswith(prefix):
                return option.removeprefix(prefix)
    return os.environ.get("APP")


def _verb_line(context: click.Context) -> str:
    names = []
    while context.parent is not None:
        names.append(context.info_name or "")
        context = context.parent
    return " ".join(reversed(names))


def open_outbox() -> Outbox:
    """Return the outbox of the app that ``-A`` names; an app without one is given one.

    Raises:
        click.UsageError: no app is named.
    """
    context = click.get_current_context()
    if context.find_root().params.get("app") is None:
        verb_line = _verb_line(context)
        raise click.UsageError(
            f"no app is named: write 'celery -A proj {verb_line}', with the module of your Celery app, "
            f"or 'celery -A outbox_relay {verb_line}' for the built-in one"
        )
    app = context.obj.app
    if getattr(app, "outbox", None) is None:
        try:
            app.loader.import_default_modules()  # Outbox(app) may stand in a module with tasks
        except ImportError as error:
            raise Refused(f"a module of the app cannot be imported: {first_line(error)}") from error
    return outbox_of(app)


def open_store(outbox: Outbox) -> Store:
    """Return the outbox's store, with tables that this version can work with.

    Raises:
        StoreError: the tables are missing, too old or too new.
    """
    outbox.store.check_schema()
    return outbox.store


def transport_of(app: Celery) -> str:
    """Return the scheme of the URL that the app publishes to."""
    url = str(app.conf.broker_write_url or app.conf.broker_url or "amqp")
    return url.partition("://")[0].partition("+")[0]


def require_broker_driver(app: Celery) -> None:
    """Look whether the broker's driver is there, which kombu finds out too late to say so.

    Raises:
        ImportError: it is not, and one of the extras brings it.
        SettingsError: another one is not.
    """
    if transport_of(app) in REDIS:
        import_module("redis")
    try:
        with app.connection_for_write() as connection:
            connection.get_transport_cls()
    except ImportError as error:
        raise SettingsError(f"broker_url needs a driver that is not installed: {first_line(error)}") from None


def explain(error: BaseException) -> str | None:
    """Say in a sentence what went wrong and what to do; None where it is a fault of the program itself."""
    match error:
        case OutboxError() if isinstance(error.__cause__, ImportError):
            return explain(error.__cause__) or str(error)
        case StoreAway():
            return f"the database is away or busy: {error}"
        case OutboxError():
            return str(error).replace("'outbox migrate'", f"'{command('migrate')}'")
        case sa.exc.NoSuchModuleError() | sa.exc.ArgumentError():
            return (
                f"outbox_database_url is not the URL of a database that is known here: {first_line(error)}; write one "
                "such as 'postgresql+psycopg://user@host/shop' or 'sqlite:///shop.db'"
            )
        case ModuleNotFoundError() if error.name in EXTRAS:
            return f"the driver {error.name} is not installed: pip install 'outbox-relay[{EXTRAS[error.name]}]'"
        case ImportError() if "psycopg" in str(error):
            return f"psycopg is installed, but cannot work: {first_line(error)}; pip install 'outbox-relay[postgresql]'"
        case sa.exc.DBAPIError() if error.connection_invalidated or isinstance(
            error, (sa.exc.OperationalError, sa.exc.InterfaceError)
        ):
            return f"the database cannot be used: {first_line(error.orig)}"
        case sa.exc.DBAPIError():
            return f"the database refused a statement: {first_line(error.orig)}"
        case sa.exc.TimeoutError():
            return f"the database does not answer: {first_line(error)}"
        case KeyError() if "No such transport" in str(error):
            return f"broker_url is not the URL of a broker that is known here: {error.args[0]}"
        case BrokerError() | AMQPError():
            return f"the broker cannot be reached: {first_line(error)}"
        case _:
            return None


def first_line(error: BaseException | None) -> str:
    """Return what an error says, without the lines of advice and addresses that drivers add."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
