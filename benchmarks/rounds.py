"""Ways of doing the same, compared in rounds: every way in every round, in an order that is shuffled."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

from benchmarks.report import table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.harness import Bench
    from benchmarks.measures import Sample

    Way = Callable[[Bench], Sample]
    #: A title, a unit, and the ways by their names; the first of them is the base of the ratios.
    Comparison = tuple[str, str, dict[str, Way]]


def compare(bench: Bench, chosen: Mapping[str, Comparison], rounds: int) -> list[str]:
    """Measure, tell each sample on stderr as it comes, and return the tables."""
    samples: dict[tuple[str, str], list[Sample]] = {}
    for number in range(rounds):
        ways = [(name, way) for name, (_, _, ways) in chosen.items() for way in ways]
        random.shuffle(ways)
        for name, way in ways:
            sample = chosen[name][2][way](bench)
            samples.setdefault((name, way), []).append(sample)
            print(f"round {number + 1}: {name}, {way}: {sample}", file=sys.stderr, flush=True)
    lines = []
    for name, (title, unit, ways) in chosen.items():
        by_way = {way: samples[name, way] for way in ways}
        lines += ["", f"### {title}", "", *table(unit, by_way, base=next(iter(ways)))]
    return lines
