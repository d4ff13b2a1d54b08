"""The app, as ``INSTALLED_APPS`` names it."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import register
from django.db.models.signals import post_migrate


class OutboxConfig(AppConfig):
    """Registers the checks, and sees to it that all tables are there after ``migrate``."""

    name = "outbox_relay.contrib.django"
    label = "outbox_relay"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from outbox_relay.contrib.django import checks, tables  # noqa: PLC0415 - apps are not ready above

        register(checks.check_settings)

        def complete(using: str, **_: Any) -> None:
            tables.complete(using)

        post_migrate.connect(complete, sender=self, weak=False, dispatch_uid="outbox_relay.tables")
