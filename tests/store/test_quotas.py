"""Quotas: no more rows of a namespace in flight than it may have, counted by what is claimed and by nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.store.bench import done, spread

if TYPE_CHECKING:
    from tests.store.bench import Bench


def quota(bench: Bench, namespace: str, most: int | None) -> None:
    bench.store.governing.set_namespace(namespace, create=True, max_in_flight=most)


def test_quota_of_five_with_twenty_pending_claims_five(bench: Bench) -> None:
    bench.stage(20, "acme")
    quota(bench, "acme", 5)
    first = bench.claim(100)
    assert spread(first) == {"acme": 5}
    assert not first.more
    assert bench.claim(100) == []
    bench.settle(*(done(row) for row in first[:2]))
    assert len(bench.claim(100)) == 2
