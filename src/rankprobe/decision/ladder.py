"""Refits at neighbouring ranks: for kernels too large to estimate whole.

A fit of more rank than needed says what the data can reach. A rank suffices if a refit reaches that, up to
the degrees of freedom it gives up (F test of nested fits); the decision is the least rank that suffices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rankprobe.decision.edge import degrees_of_freedom
from rankprobe.decision.verdict import Verdict
from rankprobe.solver import Fit, Kernel

Refit = Callable[[Kernel], Fit]

SIGNIFICANT = 1e-3
"""Level of the nested F tests."""


@dataclass
class Ladder:
    """Finds the least sufficient rank below an over-parameterized fit.

    refit : fits kernels of the rank of its argument, starting there.
    """

    over: Fit
    refit: Refit
    fits: dict[int, Fit] = field(default_factory=dict)

    def at(self, rank: int) -> Fit:
        """The fit at ``rank``, warm from the nearest fit above."""
        if rank not in self.fits:
            above = min((r for r in self.fits if r > rank), default=None)
            source = self.over if above is None else self.fits[above]
            self.fits[rank] = self.refit(source.kernel.truncated(rank))
        return self.fits[rank]

    def excess(self, small: Fit, large: Fit) -> float:
        """p value of the residual that ``small`` leaves beyond ``large``, by the F test of nested fits."""
        from scipy.special import fdtrc

        if small.rss <= large.rss:
            return 1.0
        gained = degrees_of_freedom(large) - degrees_of_freedom(small)
        free = large.lin.problem.equations - degrees_of_freedom(large)
        if free <= 0 or gained <= 0:
            return 1.0
        statistic = (small.rss - large.rss) / gained / (large.rss / free + 1e-300)
        return float(fdtrc(gained, free, statistic))

    def sufficient(self, rank: int) -> bool:
        """Whether ``rank`` reaches what the over-parameterized fit reaches."""
        return self.excess(self.at(rank), self.over) > SIGNIFICANT

    def decide(self) -> Verdict:
        """Bisect on the rank, starting at the widest gap of the spectrum."""
        values = np.asarray(self.over.kernel.values, dtype=float)
        top = self.over.kernel.rank
        low, high = -1, top
        guess = int(np.argmax(values[:-1] / np.maximum(values[1:], 1e-300))) + 1
        while high - low > 1:
            rank = guess if low < guess < high else (low + high) // 2
            if self.sufficient(rank):
                high, guess = rank, rank - 1
            else:
                low, guess = rank, rank + 1
        if high == top:
            size = min(int(self.over.kernel.left.shape[0]), int(self.over.kernel.right.shape[0]))
            return Verdict(top, size, f"rank {top}, the largest tried, still fits better than {top - 1}")
        missing = self.at(low).rss / max(self.at(high).rss, 1e-300) if low >= 0 else float("inf")
        doubt = low >= 0 and self.excess(self.at(low), self.at(high)) > SIGNIFICANT
        return Verdict(
            low if doubt else high,
            high,
            f"rank {high} fits as well as rank {top}; rank {low} leaves {missing:.3g} times the residual",
        )
