"""Django in the tests' own process: configured for one test, and not configured again after it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Iterator


def database(url: str, **options: Any) -> dict[str, Any]:
    """An entry of DATABASES for a URL of SQLAlchemy's."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parsed.database, "OPTIONS": options}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parsed.database,
        "USER": parsed.username,
        "PASSWORD": parsed.password or "",
        "HOST": parsed.host,
        "PORT": parsed.port,
        "OPTIONS": options,
    }


@contextmanager
def configured(**databases: dict[str, Any]) -> Iterator[None]:
    """Have these databases as Django's. There is no public way to take a configuration back."""
    from django.apps import apps
    from django.conf import settings
    from django.db import connections
    from django.utils.functional import empty

    assert not settings.configured
    settings.configure(USE_TZ=True, DATABASES=databases)
    apps.populate(())
    try:
        yield
    finally:
        forget()
        connections._settings = None
        connections.__dict__.pop("settings", None)
        settings._wrapped = empty


def forget() -> None:
    """Close the connections of this thread, and forget where they led."""
    from django.db import connections

    connections.close_all()
    for alias in connections:
        if hasattr(connections._connections, alias):
            del connections[alias]
