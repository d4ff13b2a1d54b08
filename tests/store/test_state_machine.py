"""Rows under anything that can happen to them, in any order, against a model of what has to come of it.

Held at every step: no row is lost, a claim is one relay's, terminal stays terminal but for a late success and redrive,
a plan never crosses its quota, held rows are never claimed, and nothing else is left behind.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from outbox_relay.core.beacon import Beacon, Held, HeldState
from outbox_relay.core.leases import rearmed
from outbox_relay.core.namespaces import UNLIMITED, Scope
from outbox_relay.core.row import Claim, ClaimedRow, Published, RowFilter
from outbox_relay.core.settlement import Retried, Settlement
from tests.store.bench import HOUR, LEASE, Bench, delivery, done, failed, lost, spread

if TYPE_CHECKING:
    from uuid import UUID

REPORTS = ("done", "failed", "lost", "retry", "released", "cancelled")
TERMINAL = ("done", "failed", "cancelled")


@dataclass
class Expected:
    """What the model knows of a row."""

    namespace: str
    workflow_id: str | None = None
    status: str = "pending"
    token: UUID | None = None
    failures: int = 0
    started: bool = False  # a worker has said that this delivery runs
    deliveries: list[ClaimedRow] = field(default_factory=list)

    def ends(self, status: str) -> None:
        self.status, self.token, self.started = status, None, False

    def report(self, kind: str, token: UUID) -> None:
        if kind == "done":
            if self.status in ("pending", "claimed", "failed"):
                self.ends("done")
            return
        if self.token != token:
            return
        if kind == "released":
            self.status, self.started = "claimed", False
        elif kind == "lost":
            self.failures += 1
            self.ends("failed" if self.failures >= 3 else "pending")
        else:
            self.ends({"failed": "failed", "cancelled": "cancelled", "retry": "pending"}[kind])


picks = st.lists(st.integers(0, 10**6), min_size=1, max_size=6)


class Life(RuleBasedStateMachine):
    """The life of the rows of one outbox."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.rows: dict[int, Expected] = {}
        self.held: set[tuple[Scope, str]] = set()
        self.quotas: dict[str, int] = {}

    @initialize(quota=st.sampled_from([UNLIMITED, 2]))
    def empty(self, quota: int) -> None:
        self.bench.empty()
        self.set_quota("default", quota)
        self.bench.know_at_once()
        self.bench.store.reset_watermark()

    def some(self, numbers: list[int], *statuses: str) -> list[int]:
        """Rows of the model, chosen by numbers."""
        ids = [row_id for row_id, row in self.rows.items() if not statuses or row.status in statuses]
        return sorted({ids[number % len(ids)] for number in numbers}) if ids else []

    def deliveries(self, numbers: list[int]) -> list[ClaimedRow]:
        """Deliveries, also old ones."""
        known = [one for row in self.rows.values() for one in row.deliveries[-3:]]
        return [known[number % len(known)] for number in numbers] if known else []

    @rule(
        count=st.integers(1, 8),
        namespace=st.sampled_from(["default", "acme", "globex"]),
        workflow_id=st.sampled_from([None, "w1"]),
    )
    def stage(self, count: int, namespace: str, workflow_id: str | None) -> None:
        for staged in self.bench.stage(count, namespace, workflow_id=workflow_id):
            assert staged.row_id not in self.rows
            self.rows[staged.row_id] = Expected(namespace, workflow_id)

    def is_held(self, row: Expected) -> bool:
        return bool(self.held & {(Scope.NAMESPACE, row.namespace), (Scope.WORKFLOW, row.workflow_id)})

    def claimable(self) -> dict[str, int]:
        """How many rows of each namespace may be claimed now."""
        found = {}
        for name in ("default", "acme", "globex"):
            rows = [row for row in self.rows.values() if row.namespace == name]
            due = sum(row.status == "pending" and not self.is_held(row) for row in rows)
            claimed = sum(row.status == "claimed" for row in rows)
            found[name] = min(due, max(self.quotas.get(name, due + claimed) - claimed, 0))
        return found

    @rule(limit=st.integers(1, 10))
    def claim(self, limit: int) -> None:
        claimable = self.claimable()
        batch = self.bench.claim(limit)
        assert len(batch) == min(limit, sum(claimable.values()))  # it neither crosses its limit nor leaves places free
        assert all(rows <= claimable[name] for name, rows in spread(batch).items())
        assert not any(self.is_held(self.rows[row.id]) for row in batch)
        assert len({row.id for row in batch}) == len(batch)
        for row in batch:
            expected = self.rows[row.id]
            assert expected.status == "pending"
            assert row.namespace == expected.namespace
            assert row.token not in {old.token for old in expected.deliveries}
            expected.status, expected.token, expected.started = "claimed", row.token, False
            expected.deliveries.append(row)

    @rule(numbers=picks, final=st.booleans())
    def publish(self, numbers: list[int], final: bool) -> None:
        rows = {one.id: one for one in self.deliveries(numbers)}.values()
        changed = [one for one in rows if self.rows[one.id].token == one.token]
        published = [Published(one.claim, "celery", final=final) for one in rows]
        assert self.bench.store.mark_published(published, queue_lease=HOUR) == len(changed)
        for one in changed:
            if final:
                self.rows[one.id].ends("done")
            elif not self.rows[one.id].started:  # else the row was re-armed for its worker, and stays due
                self.rows[one.id].status = "claimed"

    @rule(numbers=picks, how=st.sampled_from(["release", "postpone", "expire", "fail_unsendable"]))
    def give_up(self, numbers: list[int], how: str) -> None:
        claims = list({one.id: one.claim for one in self.deliveries(numbers)}.values())
        changed = [one for one in claims if self.rows[one.row_id].token == one.token]
        store = self.bench.store
        count = {
            "release": lambda: store.release(claims),
            "postpone": lambda: store.postpone(claims, timedelta(0), "queue full"),
            "expire": lambda: store.expire(claims),
            "fail_unsendable": lambda: store.fail_unsendable([(one, "too large") for one in claims]),
        }[how]()
        assert count == len(changed)
        for one in changed:
            self.rows[one.row_id].ends({"expire": "cancelled", "fail_unsendable": "failed"}.get(how, "pending"))

    @rule(numbers=picks)
    def leases_end(self, numbers: list[int]) -> None:
        ids = self.some(numbers, "claimed")
        if ids:
            self.bench.set(ids, lease_until=self.bench.store.now() - LEASE)
        for judged in self.bench.store.rearm(rearmed, limit=100):
            assert judged.row_id in ids
            self.rows[judged.row_id].status = "pending"  # and its token stays

    @rule(numbers=picks, state=st.sampled_from(list(HeldState)), expires=st.booleans())
    def beacon(self, numbers: list[int], state: HeldState, expires: bool) -> None:
        held = {one.id: Held(one.id, one.token, state, 1.0) for one in self.deliveries(numbers)}
        beacon = Beacon(instance=self.bench.me, hostname="h", pool="solo", queues=(), held=tuple(held.values()))
        changed = [one for one in held.values() if self.rows[one.row_id].token == one.token]
        assert self.bench.store.beacon(beacon, run_lease=LEASE, message_expires=expires) == len(changed)
        for one in changed:
            self.rows[one.row_id].status = "claimed"
            self.rows[one.row_id].started |= one.state is not HeldState.RESERVED

    @rule(numbers=picks, kinds=st.lists(st.sampled_from(REPORTS), min_size=6, max_size=6))
    def settle(self, numbers: list[int], kinds: list[str]) -> None:
        reports = []
        for one, kind in zip(self.deliveries(numbers), kinds, strict=False):
            task_id = one.message.task_id
            reports.append(
                {
                    "done": lambda one=one: done(one),
                    "failed": lambda one=one: failed(one),
                    "lost": lambda one=one: lost(one),
                    "retry": lambda one=one, t=task_id: Settlement.retry(delivery(one), t, Retried(delay=0, retries=1)),
                    "released": lambda one=one, t=task_id: Settlement.released(delivery(one), t),
                    "cancelled": lambda one=one, t=task_id: Settlement.cancelled(delivery(one), t, "revoked"),
                }[kind]()
            )
            self.rows[one.id].report(kind, one.token)
        settled = self.bench.settle(*reports)
        assert settled.aside == 0
        assert len(settled.verdicts) + len(settled.stale) == len(reports)

    @rule(numbers=picks)
    def cancel(self, numbers: list[int]) -> None:
        ids = self.some(numbers)
        cancelled = self.bench.store.cancel(RowFilter(ids=tuple(ids)))
        meant = [row_id for row_id in ids if self.rows[row_id].status in ("pending", "claimed")]
        assert [one.id for one in cancelled] == meant
        for row_id in meant:
            self.rows[row_id].ends("cancelled")

    @rule(numbers=picks)
    def redrive(self, numbers: list[int]) -> None:
        ids = self.some(numbers)
        meant = [row_id for row_id in ids if self.rows[row_id].status == "failed"]
        assert self.bench.store.redrive(RowFilter(ids=tuple(ids))) == len(meant)
        for row_id in meant:
            self.rows[row_id].ends("pending")
            self.rows[row_id].failures = 0

    @rule(scope_and_value=st.sampled_from([(Scope.NAMESPACE, "acme"), (Scope.WORKFLOW, "w1")]), on=st.booleans())
    def pause_or_resume(self, scope_and_value: tuple[Scope, str], on: bool) -> None:
        if on:
            self.bench.store.governing.pause(*scope_and_value)
            self.held.add(scope_and_value)
        else:
            self.bench.store.governing.resume(*scope_and_value)
            self.held.discard(scope_and_value)

    @rule(namespace=st.sampled_from(["default", "globex"]), quota=st.sampled_from([UNLIMITED, 1, 2, 3]))
    def set_quota(self, namespace: str, quota: int) -> None:
        self.bench.store.governing.set_namespace(namespace, create=True, max_in_flight=quota)
        self.quotas.pop(namespace, None)
        if quota != UNLIMITED:
            self.quotas[namespace] = quota

    @rule()
    def tidy(self) -> None:
        assert not self.bench.store.tidy(timedelta(seconds=60))

    @rule()
    def forged(self) -> None:
        """A token that nobody ever had changes nothing."""
        for row_id in list(self.rows)[:2]:
            assert self.bench.store.release([Claim(row_id, uuid.uuid4())]) == 0

    @invariant()
    def the_rows_are_as_the_model_says(self) -> None:
        row = self.bench.tables.row
        with self.bench.engine.begin() as connection:
            columns = (
                row.c.id,
                row.c.status,
                row.c.claim_token,
                row.c.lease_until,
                row.c.settled_at,
                row.c.failures,
                row.c.parked,
            )
            found = {one.id: one for one in connection.execute(sa.select(*columns))}
        assert set(found) == set(self.rows)
        for row_id, expected in self.rows.items():
            one = found[row_id]
            assert (one.status, one.claim_token, one.failures) == (expected.status, expected.token, expected.failures)
            assert (one.lease_until is not None) == (one.status == "claimed")
            assert (one.settled_at is not None) == (one.status in TERMINAL)
            assert one.status == "pending" or not one.parked
        tokens = [one.claim_token for one in found.values() if one.claim_token is not None]
        assert len(tokens) == len(set(tokens))

    def teardown(self) -> None:
        """Whatever happened, an operator, a relay and a worker that go on bring every row to an end."""
        for namespace in list(self.quotas):  # rows that stayed claimed may fill them, until their leases end
            self.set_quota(namespace, UNLIMITED)
        for scope, value in self.held:
            self.bench.store.governing.resume(scope, value)
        while batch := self.bench.claim(50):
            self.bench.publish(batch)
            self.bench.settle(*(done(row) for row in batch))
        assert "pending" not in self.bench.statuses().values()


def test_rows_live_by_the_rules_on_sqlite(sqlite_bench: Bench) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: Life(sqlite_bench), settings=settings(max_examples=30, stateful_step_count=30)
    )


def test_rows_live_by_the_rules_on_postgresql(postgres_bench: Bench) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: Life(postgres_bench), settings=settings(max_examples=12, stateful_step_count=25)
    )
