"""Command lines of the celery program, checked without running them."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import click
from celery.bin.celery import celery

from outbox_relay.worker.install import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse(words: Sequence[str]) -> str:
    """Follow a command line to its last command, with every option; return that command's name.

    Raises:
        click.ClickException: it does not know a word of it.
    """
    rest, command, name, context = list(words), celery, "celery", None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=name, allow_interspersed_args=False)
        _, rest, _ = command.make_parser(context).parse_args(rest)
        _, command, rest = command.resolve_command(context, rest)
        assert command is not None
        name = str(command.name)
    if name == "worker":  # an outbox adds its options when its app is loaded
        command = copy(command)
        command.params = [*command.params, *(click.Option((flag,)) for flag, _ in OPTIONS)]
    if not command.ignore_unknown_options:
        command.make_parser(click.Context(command, parent=context, info_name=name)).parse_args(rest)
    return name
