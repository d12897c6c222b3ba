"""A decision on the integer: the rank, its interval, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE, REACH = 0.95, 1.959964
"""Nominal level of every interval, and the standard deviations of a normal law that it takes."""


@dataclass(frozen=True)
class Verdict:
    """At least ``rank`` is needed, and no more than ``upper``; settled where the two meet.

    reason : one clause naming the test and its outcome.
    """

    rank: int
    upper: int
    reason: str

    @property
    def settled(self) -> bool:
        return self.rank == self.upper
