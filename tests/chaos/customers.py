"""Customers: they stage tasks in transactions that commit, roll back, or end in ways that nobody can tell."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from random import Random

    from tests.flow.stand import Shop


class Fate(Enum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"  # the connection broke: only the database knows


@dataclass(frozen=True)
class Order:
    """A task that was staged. ``kind`` is its name; ``runs`` is how often it runs where nothing goes wrong."""

    kind: str
    task_id: str
    runs: int
    fate: Fate


class Customers:
    """A thread that stages, about ``rate`` transactions a second, until it is told to stop."""

    def __init__(self, shop: Shop, random: Random, rate: float) -> None:
        self._shop = shop
        self._random = random
        self._pause = 1 / rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="customers", daemon=True)
        self.orders: list[Order] = []
        self.faults: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stopping.wait(self._random.expovariate(1 / self._pause)):
            try:
                self._transact()
            except sa.exc.DBAPIError:
                self._stopping.wait(0.2)  # the database is away
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must report it at its end
                self.faults.append(f"staging failed: {error!r}")

    def _transact(self) -> None:
        staged: list[tuple[str, str, int]] = []
        inner: list[tuple[str, str, int]] = []
        fate = Fate.COMMITTED if self._random.random() < 0.8 else Fate.ROLLED_BACK
        try:
            with self._shop.engine.connect() as connection, connection.begin() as transaction:
                staged += [self._stage(connection) for _ in range(self._random.randrange(1, 5))]
                if self._random.random() < 0.2:
                    with connection.begin_nested() as savepoint:
                        inner.append(self._stage(connection))
                        savepoint.rollback()
                if fate is Fate.ROLLED_BACK:
                    transaction.rollback()
        except sa.exc.DBAPIError:
            fate = Fate.UNKNOWN
            raise
        finally:
            self.orders += [Order(*one, fate) for one in staged]
            self.orders += [Order(*one, Fate.ROLLED_BACK) for one in inner]

    def _stage(self, connection: Any) -> tuple[str, str, int]:
        kind, args, runs = self._choose()
        options = {"countdown": self._random.random() * 2} if self._random.random() < 0.1 else {}
        namespace = self._random.choice(("default", "default", "acme"))
        signature = self._shop.task(kind, *args, **options)
        staged = self._shop.outbox.stage(connection, signature, namespace=namespace)
        return kind, staged.task_id, runs

    def _choose(self) -> tuple[str, tuple[Any, ...], int]:
        draw = self._random.random()
        if draw < 0.5:
            return "charge", (1,), 1
        if draw < 0.6:
            times = self._random.randrange(1, 4)
            return "retry", (times,), 1 + times
        if draw < 0.7:
            return "fail", (1,), 1
        if draw < 0.72:
            return "die", (1,), 2
        if draw < 0.85:
            return "pay", (), 1
        return "nap", (self._random.random(),), 1
