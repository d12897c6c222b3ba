"""A decision on the integer: the rank, its interval, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE, REACH = 0.95, 1.959964
"""Nominal level of every interval, and the standard deviations of a normal law that it takes."""

MOST = 100.0
"""Times the sequences there are, past which how many are wanted is not worth telling apart."""


@dataclass(frozen=True)
class Verdict:
    """At least ``rank`` is needed, and no more than ``upper``; settled where the two meet.

    reason : one clause naming the test and its outcome. short : times as many sequences as there are that
    would settle what is open. starts : fits from other starts that agree, and all, where there were several.
    """

    rank: int
    upper: int
    reason: str
    short: float = 2.0
    starts: tuple[int, int] | None = None

    @property
    def settled(self) -> bool:
        return self.rank == self.upper


def short_by(value: float, noise: float, gap: float) -> float:
    """Times as many sequences that make ``noise``, which falls as 1/√n, less than ``value`` / ``gap``."""
    return min(max(2.0, (gap * noise / value) ** 2), MOST) if value > 0 else 2.0
