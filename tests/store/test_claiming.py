"""Claims: due rows only, oldest first, each to one relay, fair between namespaces, bounded in memory."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from outbox_relay.core.lifecycle import Status
from outbox_relay.store.claims import Claims
from outbox_relay.store.engine import Database
from tests.store.bench import HOUR, LEASE, Statements, new_row, spread
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.store.bench import Bench


def test_a_claim_takes_due_rows_oldest_first(bench: Bench) -> None:
    first, second, third = (bench.stage()[0].row_id for _ in range(3))
    bench.set(first, visible_after=datetime(2026, 1, 1, 12, tzinfo=timezone.utc))
    bench.set(third, visible_after=datetime(2026, 1, 1, 11, tzinfo=timezone.utc))
    assert [row.id for row in bench.claim()] == [third, first, second]


def test_a_claim_carries_the_message_as_it_was_staged(bench: Bench) -> None:
    row = new_row("k", "acme", node="box-7", body=b"\x00\xff", headers=b'{"a":1}', exchange="x", retries=2)
    bench.insert([row])
    claimed = bench.claim_one()
    for name in ("task", "task_queue", "exchange", "routing_key", "content_type", "content_encoding"):
        assert getattr(claimed.message, name) == getattr(row.common, name)
    for name in ("task_id", "body", "headers", "properties"):
        assert getattr(claimed.message, name) == getattr(row, name)
    assert (claimed.namespace, claimed.node, claimed.retries, claimed.attempt) == ("acme", "box-7", 2, 0)
    assert not claimed.expired


def test_a_claim_is_written_to_the_row(bench: Bench) -> None:
    bench.stage()
    claimed = bench.claim_one(lease=LEASE)
    row = bench.see(claimed.id)
    assert row.status is Status.CLAIMED
    assert row.claim_token == claimed.token
    assert row.claimed_by == bench.me
    assert row.claimed_at is not None
    assert row.lease_until is not None
    assert timedelta(seconds=29) < row.lease_until - row.claimed_at < timedelta(seconds=31)


def test_every_claim_has_a_token_of_its_own(bench: Bench) -> None:
    bench.stage(50)
    assert len({row.token for row in bench.claim()}) == 50


def test_a_delayed_row_is_not_due(bench: Bench) -> None:
    bench.stage(delay=HOUR)
    bench.stage(visible_after=datetime.now(timezone.utc) + HOUR)
    assert bench.claim() == []
    for row in bench.store.ls():
        assert timedelta(minutes=59) < row.visible_after - bench.store.now() <= HOUR


def test_a_parked_row_is_not_claimed(bench: Bench) -> None:
    (staged,) = bench.stage()
    bench.set(staged.row_id, parked=True)
    assert bench.claim() == []


def test_an_eta_in_the_past_is_due_now_and_not_before_the_others(bench: Bench) -> None:
    bench.look_ahead_only()
    bench.stage()
    bench.claim()
    bench.stage(visible_after=datetime(2001, 1, 1, tzinfo=timezone.utc))
    assert len(bench.claim()) == 1  # although this relay does not look so far back any more


def test_a_row_whose_expires_has_passed_says_so(bench: Bench) -> None:
    bench.stage(expires_at=datetime.now(timezone.utc) - HOUR)
    bench.stage(expires_at=datetime.now(timezone.utc) + HOUR)
    assert [row.expired for row in bench.claim()] == [True, False]


def test_more_says_whether_other_rows_are_due(bench: Bench) -> None:
    bench.stage(5)
    assert bench.claim(3).more
    assert not bench.claim(3).more
    assert not bench.claim(3).more


def test_one_tenant_with_many_rows_does_not_starve_another(bench: Bench) -> None:
    for number in range(8):
        bench.stage(63, "big", task_queue=f"q{number}")
    bench.stage(1, "small")
    claimed = spread(bench.claim(8))
    assert claimed == {"big": 7, "small": 1}


def test_a_namespace_that_appears_gets_its_place_in_the_very_next_sweep(bench: Bench) -> None:
    bench.stage(50)
    bench.claim(8)
    bench.stage(1, "late")
    assert spread(bench.claim(8)) == {"default": 7, "late": 1}


def test_what_a_namespace_leaves_over_goes_to_the_others_in_equal_parts(bench: Bench) -> None:
    for name, rows in {"a": 60, "b": 60, "c": 2}.items():
        bench.stage(rows, name)
    assert spread(bench.claim(30)) == {"a": 14, "b": 14, "c": 2}


def test_with_more_namespaces_than_places_the_turn_goes_round(bench: Bench) -> None:
    for number in range(9):
        bench.stage(3, f"ns{number}")
    turns = [spread(bench.claim(3)) for _ in range(3)]
    assert all(set(turn.values()) == {1} for turn in turns)
    assert len({name for turn in turns for name in turn}) == 9


def test_everything_is_claimed_in_the_end_whatever_the_namespaces(bench: Bench) -> None:
    for number in range(7):
        bench.stage(1 + number * 3, f"ns{number}")
    claimed = []
    while batch := bench.claim(10):
        claimed += [row.id for row in batch]
    assert len(claimed) == len(set(claimed)) == sum(1 + number * 3 for number in range(7))


def test_a_row_of_a_namespace_that_nobody_registered_is_claimed_while_it_is_the_only_one(bench: Bench) -> None:
    bench.stage(2, "acme")
    namespace = bench.tables.namespace
    with bench.engine.begin() as connection:
        connection.execute(sa.delete(namespace).where(namespace.c.namespace == "acme"))
    if bench.dialect == "postgresql":
        assert len(bench.claim()) == 2


def test_a_claim_of_one_namespace_is_one_statement(bench: Bench) -> None:
    bench.stage(20)
    with Statements(bench.engine) as statements:
        assert len(bench.claim()) == 20
    assert len(statements.seen) == (1 if bench.dialect == "postgresql" else 2)


def test_an_idle_look_is_one_statement(bench: Bench) -> None:
    bench.stage(1, "acme")
    bench.claim()
    bench.claim()
    with Statements(bench.engine) as statements:
        assert bench.claim() == []
    assert len(statements.seen) == 1


def test_bodies_are_bounded_in_memory_and_at_least_one_row_is_claimed(bench: Bench) -> None:
    bench.stage(10, body=b"x" * 1_000_000)
    claims = Claims(Database(bench.engine, bench.tables), max_bytes=3_500_000)
    batch = claims.claim(limit=500, claimed_by=bench.me, lease=LEASE)
    assert len(batch) == 4
    assert batch.more
    claims = Claims(Database(bench.engine, bench.tables), max_bytes=10)
    assert len(claims.claim(limit=500, claimed_by=bench.me, lease=LEASE)) == 1


def test_the_byte_limit_is_shared_by_the_namespaces(bench: Bench) -> None:
    bench.stage(10, "big", body=b"x" * 1_000_000)
    bench.stage(2, "small", body=b"x" * 1_000_000)
    claims = Claims(Database(bench.engine, bench.tables), max_bytes=3_500_000)
    batch = claims.claim(limit=500, claimed_by=bench.me, lease=LEASE)
    assert spread(batch) == {"big": 2, "small": 2}
    assert batch.more


def test_rows_below_the_watermark_wait_for_a_full_look(bench: Bench) -> None:
    bench.look_ahead_only()
    bench.stage(1)
    bench.claim()
    (late,) = bench.stage(1)  # as a transaction would leave it that had staged long before it committed
    bench.set(late.row_id, visible_after=datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert bench.claim() == []
    bench.store.reset_watermark()
    assert [row.id for row in bench.claim()] == [late.row_id]


def test_rows_of_several_namespaces_below_the_watermark_wait_for_a_full_look(bench: Bench) -> None:
    bench.look_ahead_only()
    bench.stage(1, "a")
    bench.stage(1, "b")
    bench.claim()
    bench.claim()
    rows = [*bench.stage(1, "a"), *bench.stage(1, "b")]
    bench.set([one.row_id for one in rows], visible_after=datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert bench.claim() == []
    bench.store.reset_watermark()
    assert len(bench.claim()) == 2


def test_rows_that_were_not_counted_are_not_taken_for_claimed(bench: Bench) -> None:
    """Each namespace is counted only so far: the one with very many rows has more than that."""
    bench.look_ahead_only()
    for number in range(9):
        bench.stage(1, f"ns{number}")
    bench.stage(60, "big")
    claimed = 0
    while batch := bench.claim(40):
        claimed += len(batch)
    assert claimed == 69


def test_a_claim_that_fails_is_forgotten(bench: Bench) -> None:
    bench.look_ahead_only()
    bench.stage(3)

    @sa.event.listens_for(bench.engine, "commit", once=True)
    def fail(connection: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.claim()
    assert len(bench.claim()) == 3


def test_late_commits_are_found_soon(bench: Bench) -> None:
    bench.stage(1)
    bench.claim()
    (late,) = bench.stage(1)
    bench.set(late.row_id, visible_after=datetime(2026, 1, 1, tzinfo=timezone.utc))
    eventually(bench.claim, within=5)


def test_released_rows_are_found_above_the_watermark(bench: Bench) -> None:
    bench.look_ahead_only()
    bench.stage(3)
    bench.stage(1, "acme")
    batch = bench.claim()
    bench.claim()
    assert bench.store.release([row.claim for row in batch]) == 4
    assert len(bench.claim()) == 4


def test_a_client_whose_clock_is_wrong_claims_nothing_early(bench: Bench, monkeypatch: object) -> None:
    """Nothing of the client's clock reaches the database: spans do, instants do not."""
    bench.stage(delay=timedelta(seconds=5))
    bench.stage()
    with Statements(bench.engine) as statements:
        claimed = bench.claim()
    assert len(claimed) == 1
    assert all("statement_timestamp()" in one or "'now'" in one for one in statements.seen)
