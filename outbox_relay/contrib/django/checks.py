"""What is wrong with the outbox's settings in a Django project, told by ``manage.py check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from celery import current_app
from django.core import checks
from django.db import connections

from outbox_relay.contrib.django.database_url import database_url
from outbox_relay.errors import OutboxError
from outbox_relay.outbox import outbox_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.checks import CheckMessage

    from outbox_relay.outbox import Outbox


def check_settings(app_configs: Any, **_: Any) -> Iterable[CheckMessage]:
    """Read the outbox's settings from the Celery app, and compare its database with Django's."""
    app = current_app._get_current_object()
    if app.main in (None, "", "default", "__main__") and getattr(app, "outbox", None) is None:
        yield checks.Warning(
            "there is no Celery app in this process, so nothing can be staged in it",
            hint="import your app where Django starts: 'from .celery import app' in the project's __init__.py",
            id="outbox_relay.W001",
        )
        return
    yield from check_outbox(outbox_of(app))


def check_outbox(outbox: Outbox) -> Iterable[CheckMessage]:
    """Do the same for one outbox."""
    try:
        enabled, settings = outbox.enabled, outbox.settings if outbox.enabled else None
    except OutboxError as error:
        yield checks.Error(str(error), id="outbox_relay.E001")
        return
    if not enabled or settings is None:
        yield checks.Info("the outbox is switched off", hint="set CELERY_OUTBOX_ENABLED = True", id="outbox_relay.I001")
        return
    if outbox.app.conf.task_always_eager:
        yield checks.Warning(
            "task_always_eager is on: tasks would run at once instead of being staged, so capture() refuses to work",
            hint="leave it off, also in tests: outbox_relay.testing runs staged tasks without a broker",
            id="outbox_relay.W002",
        )
    if not any(_same(settings.database_url, alias) for alias in connections):
        yield checks.Warning(
            "outbox_database_url names none of the databases in DATABASES: what Django stages, the relay does not see",
            hint="write CELERY_OUTBOX_DATABASE_URL = database_url(DATABASES['default']), with database_url from "
            "outbox_relay.contrib.django.database_url",
            id="outbox_relay.W003",
        )
    if settings.schema is not None:
        yield checks.Warning(
            f"outbox_schema is {settings.schema!r}, and Django's migrations make the outbox's tables where the "
            "search_path of its connections leads",
            hint="leave it out, or let the search_path of DATABASES lead to that schema",
            id="outbox_relay.W004",
        )


def _same(url: str, alias: str) -> bool:
    """Whether a URL and an alias name the same database; a host that is not given is the local one."""
    settings = connections[alias].settings_dict
    try:
        ours, theirs = sa.make_url(url), sa.make_url(database_url(settings))
    except ValueError:
        return False
    except sa.exc.ArgumentError:
        return True  # told elsewhere
    if ours.get_backend_name() != theirs.get_backend_name():
        return False
    if ours.get_backend_name() == "sqlite":
        return ours.database == theirs.database
    local = (None, "", "localhost", "127.0.0.1", "::1")
    same_host = ours.host == theirs.host or (ours.host in local and theirs.host in local)
    return same_host and (ours.port or 5432) == (theirs.port or 5432) and ours.database == theirs.database
