"""``workflow``: all rows that were staged under one id."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from outbox_relay.cli.output import facts, print_json, print_table
from outbox_relay.cli.session import Refused, command, json_option, open_outbox, open_store, verb
from outbox_relay.core.wording import age

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from outbox_relay.core.namespaces import WorkflowInfo


@click.group(short_help="Look at a workflow.")
def workflow() -> None:
    """Look at all rows that were staged under one workflow id."""


@workflow.command(short_help="Show how far a workflow is.")
@click.argument("workflow_id", metavar="W")
@json_option
@verb
def show(workflow_id: str, as_json: bool) -> None:
    """Show how many rows of a workflow are in which state, its oldest pending row, its runs and its failed rows.

    Rows that have ended count as long as they are kept (outbox_retention_done, outbox_retention_failed).
    """
    store = open_store(open_outbox())
    found = store.governing.workflow(workflow_id)
    if found is None:
        raise Refused(f"there is no row of a workflow {workflow_id}")
    if as_json:
        print_json(asdict(found))
    else:
        print_table(facts(_facts(found, store.now())))


def _facts(found: WorkflowInfo, now: datetime) -> Iterator[tuple[str, Any]]:
    yield "workflow", found.workflow_id + (" (paused)" if found.held else "")
    yield "rows", f"{found.total:,}"
    for status, rows in found.counts.items():
        kept = f"  ({found.parked:,} parked)" if status == "pending" and found.parked else ""
        yield status, f"{rows:,}{kept}"
    yield "first staged", age(found.created_at, now)
    if found.oldest_pending_at is not None:
        yield "oldest pending", f"staged {age(found.oldest_pending_at, now)}"
    if found.last_settled_at is not None:
        yield "last ended", age(found.last_settled_at, now)
    if found.run_ids:
        yield "runs", ", ".join(found.run_ids)
    if found.failed:
        more = found.counts["failed"] - len(found.failed)
        yield "failed rows", ", ".join(str(one) for one in found.failed) + (f" and {more:,} more" if more else "")
        yield "", f"'{command(f'explain {found.failed[0]}')}' says why"
