"""What came of the demo: every figure read back from its database, and set against what has to be there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import sqlalchemy as sa
from rich.table import Table
from rich.text import Text

from outbox_relay.cli.demo_tasks import KINDS, engine_of, orders, rolled_back, runs, total
from outbox_relay.cli.output import print_table

if TYPE_CHECKING:
    from outbox_relay.outbox import Outbox

ENDS_AS = {"refund": "failed"}  # every other kind ends as done
RUNS_TWICE = ("ship", "render")
STORY = {
    "charge": "succeeds at once",
    "mail": "staged in bulk",
    "remind": "waits for its countdown",
    "ship": "asks for one retry",
    "refund": "fails for good",
    "render": "its process is killed once",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What the database says of one kind of task."""

    name: str
    orders: int
    rows: int
    done: int
    failed: int
    runs: int
    never_ran: int

    @property
    def as_planned(self) -> bool:
        count = KINDS[self.name][1]
        ended = self.failed if ENDS_AS.get(self.name) == "failed" else self.done
        least = 2 * count if self.name in RUNS_TWICE else count
        return (self.orders, self.rows, ended, self.never_ran) == (count, count, count, 0) and self.runs >= least


@dataclass(frozen=True, slots=True)
class Report:
    """What the database says of the whole demo."""

    kinds: tuple[Kind, ...]
    strangers: int
    rolled_back: int
    rolled_back_rows: int
    rolled_back_runs: int

    @property
    def complete(self) -> bool:
        """Whether every committed task has its row and its outcome, and nothing that was rolled back left a trace."""
        clean = (self.strangers, self.rolled_back_rows, self.rolled_back_runs) == (0, 0, 0)
        return (
            clean and self.rolled_back > 0 and len(self.kinds) == len(KINDS) and all(k.as_planned for k in self.kinds)
        )


def read_report(outbox: Outbox) -> Report:
    """Read everything back from the database."""
    with engine_of(outbox.settings.database_url).connect() as connection:
        return read(connection, outbox.tables.row)


def read(connection: sa.Connection, row: sa.Table) -> Report:
    """Read everything back over ``connection``; ``row`` is the outbox's table."""

    def count(table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table).where(*where)).scalar_one())

    kinds = [Kind(*one) for one in connection.execute(_by_kind(row))]
    gone = sa.select(rolled_back.c.task_id)
    return Report(
        kinds=tuple(sorted(kinds, key=lambda kind: list(KINDS).index(kind.name))),
        strangers=count(row, row.c.task_id.not_in(sa.select(orders.c.task_id))),
        rolled_back=count(rolled_back),
        rolled_back_rows=count(row, row.c.task_id.in_(gone)),
        rolled_back_runs=count(runs, runs.c.task_id.in_(gone)),
    )


def _by_kind(row: sa.Table) -> sa.Select[Any]:
    """Every committed order beside its row and its runs, where there are any; counted by kind."""
    ran = sa.select(sa.func.count()).select_from(runs).where(runs.c.task_id == orders.c.task_id).scalar_subquery()
    return (
        sa.select(
            orders.c.kind,
            sa.func.count(),
            sa.func.count(row.c.id),
            sa.func.count().filter(row.c.status == "done"),
            sa.func.count().filter(row.c.status == "failed"),
            sa.func.sum(ran),
            sa.func.count().filter(ran == 0),
        )
        .select_from(orders.outerjoin(row, row.c.task_id == orders.c.task_id))
        .group_by(orders.c.kind)
    )


def show_report(report: Report, *, took: float) -> None:
    """Print the table, and in one line what it comes to."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=True, footer_style="bold")
    numbers = ("orders", "rows", "done", "failed", "runs")
    table.add_column("task", footer="all")
    table.add_column("what happens to it")
    for name in numbers:
        table.add_column(name, justify="right", footer=str(sum(getattr(kind, name) for kind in report.kinds)))
    table.add_column("")
    for kind in report.kinds:
        good = Text("as it should be", "green") if kind.as_planned else Text("NOT as it should be", "bold red")
        table.add_row(kind.name, STORY[kind.name], *(str(getattr(kind, name)) for name in numbers), good)
    gone = (report.rolled_back_rows, report.rolled_back_runs) == (0, 0)
    table.add_row(
        "rolled back",
        f"{report.rolled_back} tasks staged, then rolled back",
        "",
        str(report.rolled_back_rows),
        "",
        "",
        str(report.rolled_back_runs),
        Text("as it should be", "green") if gone else Text("NOT as it should be", "bold red"),
    )
    click.echo()
    print_table(table)
    click.echo()
    settled = sum(kind.done + kind.failed for kind in report.kinds)
    verdict, style = "something is NOT as it should be", "bold red"
    if report.complete:
        verdict, style = "nothing lost, nothing that was rolled back ran", "green"
    print_table(Text(f"{settled} of {total()} tasks have their outcome after {took:.0f} s: {verdict}", style))
