"""The demo's shop at work: orders and their tasks, staged in one transaction each, and some rolled back."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session, sessionmaker

from outbox_relay.cli.demo_tasks import KINDS, engine_of, orders, rolled_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

    from outbox_relay.core.row import Staged
    from outbox_relay.outbox import Outbox

TOGETHER = 20  # tasks in one transaction
ROLLED_BACK_EVERY = 5  # transactions
COUNTDOWN = 3


class _ShopClosed(Exception):  # noqa: N818 - not an error: it rolls a transaction back
    pass


def stage_all(outbox: Outbox) -> Iterator[int]:
    """Stage every task of the demo; yield how many were committed after each transaction.

    Every fifth transaction is followed by one that does the same and is rolled back, and by one of which only a
    savepoint is; what both had staged is noted afterwards.
    """
    engine = engine_of(outbox.settings.database_url)
    maker = sessionmaker(engine)
    committed = 0
    for turn, (kind, numbers) in enumerate(_batches()):
        with maker.begin() as session:
            _keep_orders(session, kind, numbers, _stage(outbox, session, kind, numbers))
        committed += len(numbers)
        if turn % ROLLED_BACK_EVERY == 0:
            _roll_back(outbox, engine, maker, turn)
        yield committed


def _batches() -> Iterator[tuple[str, list[int]]]:
    number = 0
    for kind, (_, count) in KINDS.items():
        numbers = iter(range(number, number + count))
        number += count
        while batch := list(islice(numbers, TOGETHER)):
            yield kind, batch


def _stage(outbox: Outbox, session: Session, kind: str, numbers: list[int]) -> list[Staged]:
    """Stage a task for each order, in the way that suits its kind."""
    task: Any = outbox.app.tasks[KINDS[kind][0].name]
    if kind == "mail":
        signatures = [task.si(number) for number in numbers]
        return outbox.stage_many(session, signatures, workflow_id="newsletter", run_id=str(numbers[0]))
    options = {"countdown": COUNTDOWN} if kind == "remind" else {}
    return [outbox.stage(session, task.si(number).set(**options)) for number in numbers]


def _keep_orders(session: Session, kind: str, numbers: list[int], staged: list[Staged]) -> None:
    values = [
        {"number": number, "kind": kind, "task_id": one.task_id} for number, one in zip(numbers, staged, strict=True)
    ]
    session.execute(orders.insert(), values)


def _roll_back(outbox: Outbox, engine: sa.Engine, maker: sessionmaker[Session], turn: int) -> None:
    """Stage tasks in a transaction and in a savepoint, and roll both back."""
    numbers = [-(10 * turn + step) - 1 for step in range(6)]
    gone: list[Staged] = []
    try:
        with maker.begin() as session:
            gone += _stage(outbox, session, "charge", numbers[:3])
            _keep_orders(session, "charge", numbers[:3], gone)
            raise _ShopClosed
    except _ShopClosed:
        pass
    with maker.begin() as session:
        savepoint = session.begin_nested()
        gone += _stage(outbox, session, "mail", numbers[3:])
        savepoint.rollback()
    with engine.begin() as connection:
        connection.execute(rolled_back.insert(), [{"task_id": one.task_id} for one in gone])
