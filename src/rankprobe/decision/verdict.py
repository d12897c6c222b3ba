"""A decision on the integer: the rank, its interval, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE = 0.95
"""Nominal level of every interval."""


@dataclass(frozen=True)
class Verdict:
    """rank with lower ≤ rank ≤ upper; upper None where the data do not exclude more.

    reason : one clause naming the test and its outcome.
    """

    rank: int
    lower: int
    upper: int | None
    reason: str

    @property
    def settled(self) -> bool:
        return self.lower == self.rank == self.upper
