"""What has to hold when the dust has settled. The database and the file of runs are the witnesses."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tests.chaos.customers import Fate
from tests.chaos.shop import EFFECTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.chaos.customers import Order
    from tests.flow.stand import Shop

TERMINAL = ("done", "failed", "cancelled")


def rows_of(shop: Shop) -> dict[str, Any]:
    """All rows, by task id."""
    row = shop.outbox.tables.row
    with shop.engine.connect() as connection:
        return {one.task_id: one for one in connection.execute(sa.select(row))}


def open_rows(shop: Shop) -> int:
    row = shop.outbox.tables.row
    with shop.engine.connect() as connection:
        query = sa.select(sa.func.count()).select_from(row).where(row.c.status.not_in(TERMINAL))
        return int(connection.execute(query).scalar_one())


def judge(shop: Shop, orders: Iterable[Order], *, calm: bool, child_kills: int) -> tuple[list[str], dict[str, Any]]:
    """Return what does not hold, and figures."""
    rows, runs = rows_of(shop), Counter(shop.runs())
    with shop.engine.connect() as connection:
        effects = Counter(connection.execute(sa.select(EFFECTS.c.task_id)).scalars())
    wrong: list[str] = []
    duplicates = lost_attempts = 0
    for order in orders:
        row = rows.get(order.task_id)
        ran = effects[order.task_id] if order.kind == "pay" else runs[order.task_id]
        told = f"{order.kind} {order.task_id} ({order.fate.value})"
        if order.fate is Fate.ROLLED_BACK and (row is not None or ran):
            wrong.append(f"{told}: has a row or {ran} runs")
        if order.fate is Fate.COMMITTED and row is None:
            wrong.append(f"{told}: has no row")
        if row is None:
            if ran:
                wrong.append(f"{told}: ran {ran} times without a row")
            continue
        told += f" row {row.id} {row.status} attempt {row.attempt} failures {row.failures} rearms {row.rearms}"
        if row.status not in TERMINAL:
            wrong.append(f"{told}: never ended; {row}")
        if row.status == "done" and not ran:
            wrong.append(f"{told}: done, and never ran")
        if row.status == "done" and order.kind == "retry" and ran < order.runs and calm:
            wrong.append(f"{told}: ran {ran} times instead of {order.runs}")
        if row.status == "failed" and order.kind != "fail" and "vanished" not in (row.error or ""):
            wrong.append(f"{told}: failed: {row.error}")
        if row.status == "cancelled" or (order.kind == "fail" and row.status == "done" and calm):
            wrong.append(f"{told}: is not what it should be: {row.error}")
        if order.kind == "pay" and ran > 1:
            wrong.append(f"{told}: {ran} effects")
        lost_attempts += max(row.failures - (order.kind == "die"), 0)
        if ran > order.runs:
            duplicates += 1
            if calm:
                wrong.append(f"{told}: ran {ran} times, expected {order.runs}")
    if lost_attempts > child_kills:
        wrong.append(f"{lost_attempts} attempts were spent, and {child_kills} pool processes killed")
    figures = {
        "rows": len(rows),
        **Counter(str(one.status) for one in rows.values()),
        "runs": sum(runs.values()),
        "rows run more often than asked for": duplicates,
        "attempts lost": lost_attempts,
        "rearms": sum(one.rearms for one in rows.values()),
    }
    return wrong, figures
