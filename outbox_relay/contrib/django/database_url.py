"""One place for the address of the database: Django's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVERS = {"postgresql": "postgresql+psycopg", "postgis": "postgresql+psycopg", "sqlite3": "sqlite"}


def database_url(database: Mapping[str, Any]) -> str:
    """Return the URL of an entry of Django's ``DATABASES``, for ``outbox_database_url``.

    Of ``OPTIONS``, those that a connection string may hold are taken over (``sslmode``, ``service`` and the like).

    Raises:
        ValueError: the outbox does not know this kind of database.
    """
    engine = str(database.get("ENGINE", ""))
    kind = engine.rpartition(".")[2]
    if kind not in DRIVERS:
        raise ValueError(f"the outbox works on PostgreSQL and SQLite, not on {engine or 'an entry without ENGINE'}")
    if kind == "sqlite3":
        return sa.URL.create("sqlite", database=str(database["NAME"])).render_as_string(hide_password=False)
    options = {name: value for name, value in (database.get("OPTIONS") or {}).items() if isinstance(value, (str, int))}
    url = sa.URL.create(
        DRIVERS[kind],
        username=database.get("USER") or None,
        password=database.get("PASSWORD") or None,
        host=database.get("HOST") or None,
        port=int(database["PORT"]) if database.get("PORT") else None,
        database=str(database["NAME"]) if database.get("NAME") else None,
        query={name: str(value) for name, value in options.items()},
    )
    return url.render_as_string(hide_password=False)
