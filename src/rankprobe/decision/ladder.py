"""Refits at neighbouring ranks: for kernels too large to estimate whole.

One more rank always gains: it takes the largest of the noise directions, not an average one, so that an F
test, which counts its parameters, lets in rank after rank of noise. In whitened coordinates noise is close to
a Gaussian matrix of (p_q − r) × (p_k − r), whose largest squared singular value is near
σ²(√(p_q − r) + √(p_k − r))²: what a rank must gain to be more than noise. A rank that leaves no more than its
wider fits suffices as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.decision.noise import degrees_of_freedom
from rankprobe.decision.verdict import Verdict
from rankprobe.solver import Fit, Kernel

Refit = Callable[[Kernel], Fit]

NEEDED, ALLOWED = 1.5, 1.2
"""Gain of a rank over the most that noise gives: signal above the first, noise alone below the second."""

ROUNDED = 1e-9
"""Share of ‖Y‖² that single precision leaves of a right fit: no rank is needed for less."""


@dataclass(eq=False)
class Ladder:
    """Finds the least sufficient rank below an over-parameterized fit.

    refit : fits kernels of the rank of its argument, starting there. uneven : how much larger, squared, the
    best direction of the noise at a fit is than that of even noise.
    """

    over: Fit
    refit: Refit
    uneven: Callable[[Fit], float] = lambda _: 1.0
    fits: dict[int, Fit] = field(default_factory=dict)

    def at(self, rank: int) -> Fit:
        """The fit at ``rank``, warm from the nearest fit above."""
        if rank not in self.fits:
            above = min((r for r in self.fits if r > rank), default=None)
            source = self.over if above is None else self.fits[above]
            self.fits[rank] = self.refit(source.kernel.truncated(rank))
        return self.fits[rank]

    def gain(self, rank: int) -> float:
        """What rank + 1 gains over ``rank``, in units of the most that noise alone would give it."""
        if self.exact(rank):
            return 0.0
        more, fewer = self.at(rank + 1), self.at(rank)
        if fewer.rss <= min(more.rss, self.over.rss):
            return 0.0
        rows, columns = int(fewer.kernel.left.shape[0]) - rank, int(fewer.kernel.right.shape[0]) - rank
        edge = (math.sqrt(rows) + math.sqrt(columns)) ** 2 * self.uneven(fewer)
        # Had rank + 1 only fitted noise, its residual would have lost the edge and what ``rank`` has fitted.
        free = max(more.lin.problem.equations - degrees_of_freedom(fewer) - edge, 1.0)
        return (fewer.rss - more.rss) / (more.rss / free + 1e-300) / edge

    def exact(self, rank: int) -> bool:
        """Whether ``rank`` leaves nothing but rounding."""
        return self.at(rank).rss <= ROUNDED * self._squares

    @cached_property
    def _squares(self) -> float:
        outputs = self.over.lin.problem.outputs
        xp = array_namespace(outputs)
        return float(xp.sum(outputs * outputs, dtype=xp.float64))

    def sufficient(self, rank: int) -> bool:
        """Whether one rank more would gain no more than noise does."""
        return self.gain(rank) <= NEEDED

    def decide(self) -> Verdict:
        """Bisect on the rank, starting at the widest gap of the spectrum."""
        values = np.asarray(self.over.kernel.values, dtype=float)
        top = self.over.kernel.rank
        self.fits[top] = self.over
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
        after = self.gain(high)
        reason = f"rank {high + 1} gains {after:.2f} times what noise could"
        if self.exact(high):
            reason = f"rank {high} leaves {self.at(high).rss / self._squares:.1e} of Y, its rounding"
        if low >= 0:
            reason = f"rank {high} gains {self.gain(low):.3g} times what noise could, {reason}"
        size = min(int(self.over.kernel.left.shape[0]), int(self.over.kernel.right.shape[0]))
        return Verdict(high, high if after <= ALLOWED else size, reason)
