"""The command line: ``celery -A proj outbox …``, through Celery's own plug-in point.

Every start of the celery program imports this module, a worker's too: the verbs, and what they need, are imported when
they are called.
"""

from __future__ import annotations

from importlib import import_module

import click

_VERBS = {
    "migrate": "schema",
    "check": "check",
    "relay": "relay",
    "status": "status",
    "workers": "status",
    "ls": "rows",
    "show": "rows",
    "explain": "explain",
    "cancel": "rows",
    "failed": "failed",
    "pause": "holds",
    "resume": "holds",
    "holds": "holds",
    "namespace": "namespaces",
    "quota": "namespaces",
    "placement": "namespaces",
    "workflow": "workflow",
    "rearm": "upkeep",
    "prune": "upkeep",
    "demo": "demo",
}


class _Verbs(click.Group):
    """A group whose verbs are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command = getattr(import_module(f"outbox_relay.cli.{_VERBS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def outbox() -> None:
    """The transactional outbox: its tables, its relay, its rows.

    KEY is a row id, a task id or a dispatch key. Reading verbs take --json: one document on standard output. Exit
    codes: 0 done, 1 refused, failed or not found, 2 misuse, 130 interrupted.
    """
