"""``explain``: why a row is where it is, and what would move it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from outbox_relay.cli.output import note, print_json, say
from outbox_relay.cli.rows import one_row
from outbox_relay.cli.session import command, json_option, open_outbox, open_store, verb
from outbox_relay.settings import ENABLE_HINT

if TYPE_CHECKING:
    from outbox_relay.core.explain import Explanation


@click.command(short_help="Say why a row is where it is.")
@click.argument("key")
@json_option
@verb
def explain(key: str, as_json: bool) -> None:
    """Say why a row is where it is, and what would move it. KEY is a row id, a dispatch key or a task id.

    Where the row's message waits in a queue, the broker is asked for what else does.
    """
    outbox = open_outbox()
    row = one_row(open_store(outbox), key)
    explanation = _with_whole_commands(outbox.inspection().explain_row(row))
    if as_json:
        print_json({**asdict(explanation), "explanation": explanation.sentence})
        return
    say(explanation.sentence)
    if not outbox.enabled:
        note(f"warning: the outbox is dormant: {ENABLE_HINT}")


def _with_whole_commands(explanation: Explanation) -> Explanation:
    """Put the app at hand into commands, so that they can be copied."""
    if explanation.moves is None:
        return explanation
    return replace(explanation, moves=explanation.moves.replace("'outbox ", f"'{command('')}"))
