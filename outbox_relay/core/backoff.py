"""How long a row waits before it runs again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: ``base × multiplier^failures``, never above ``maximum``.

    ``jitter`` is the share (0 to 1) by which the delay is spread, both ways, around its value.
    """

    base: timedelta
    multiplier: float
    maximum: timedelta
    jitter: float = 0.0

    def delay(self, failures: int, draw: float = 0.5) -> timedelta:
        """Return the delay after ``failures`` earlier failures (0 for the first one).

        ``draw`` is a uniform random number in [0, 1); 0.5 is the undisturbed delay. Any number of failures
        gives an answer: what overflows a float is the maximum.
        """
        try:
            seconds = self.base.total_seconds() * self.multiplier ** max(failures, 0)
        except OverflowError:
            seconds = self.maximum.total_seconds()
        seconds = min(seconds, self.maximum.total_seconds())
        spread = seconds * self.jitter * (2.0 * draw - 1.0)
        return timedelta(seconds=min(max(seconds + spread, 0.0), self.maximum.total_seconds()))
