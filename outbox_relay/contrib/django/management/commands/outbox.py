"""``manage.py outbox …``: the same command line as ``celery -A proj outbox …``."""

from __future__ import annotations

import os
from typing import Any

from celery.bin.celery import celery
from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Hands everything over; ``--help`` too."""

    help = "The outbox's command line: manage.py outbox status, manage.py outbox relay, ..."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Call Celery's own program with the rest of the line.

        The app is ``settings.OUTBOX_CELERY_APP``, by default the package of the settings: Celery's usual place.
        """
        proj = getattr(settings, "OUTBOX_CELERY_APP", None) or settings.SETTINGS_MODULE.partition(".")[0]
        os.environ["APP"] = str(proj)  # what celery reads where no -A is given
        celery.main(args=["outbox", *argv[2:]], prog_name="manage.py")

    def handle(self, *args: Any, **options: Any) -> None:
        """Where it is called from Python: ``call_command("outbox", "status")``."""
        self.run_from_argv(["manage.py", "outbox", *args])
