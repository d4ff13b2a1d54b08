"""The built-in app: ``celery -A outbox_relay worker``, ``… beat``, ``… outbox relay``.

It runs without any setting, on a SQLite file and the embedded broker under ``.outbox/``. ``celeryconfig.py`` in the
working directory, or the module that ``celery --config`` names, changes that; the environment has the last word:
``OUTBOX_…`` for each setting of the outbox, ``OUTBOX_BROKER_URL``, and ``OUTBOX_IMPORTS`` for modules with tasks.
"""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from celery import Celery

from outbox_relay.environment import configuration
from outbox_relay.errors import SettingsError
from outbox_relay.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(".outbox")
DEFAULTS = {
    "broker_url": f"embedded:///{DATA}/broker",
    "outbox_enabled": True,
    "outbox_database_url": f"sqlite:///{DATA}/outbox.db",
}


def build(environ: Mapping[str, str]) -> Celery:
    """Return the built-in app, configured by defaults, then by ``celeryconfig.py``, then by ``environ``.

    Raises:
        SettingsError: as :func:`outbox_relay.environment.configuration`.
    """
    built = Celery("outbox_relay")
    module = environ.get("CELERY_CONFIG_MODULE")
    if module or PathFinder.find_spec("celeryconfig", [os.getcwd()]):
        built.config_from_object(module or "celeryconfig")
    built.conf.update(configuration(environ))
    built.on_after_configure.connect(_complete, weak=False)
    Outbox(built)
    return built


def _complete(sender: Celery, source: Any, **_: Any) -> None:
    """Give what nothing has configured its default, and make the folder that the default database lives in.

    Celery's own ``add_defaults`` would put these before what stands in ``celeryconfig.py``.
    """
    for key, value in DEFAULTS.items():
        if source.get(key) is None:
            source[key] = value
    if source["outbox_database_url"] == DEFAULTS["outbox_database_url"]:
        DATA.mkdir(exist_ok=True)  # the broker makes its own
        ignore = DATA / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")


try:
    app = build(os.environ)
except SettingsError as error:
    if click.get_current_context(silent=True) is None:
        raise
    # The celery program would print the traceback of anything else.
    raise SystemExit(f"Error: {error}") from None
