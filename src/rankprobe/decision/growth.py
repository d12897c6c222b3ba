"""Rank by rank from nothing: for sequences too few, or noise too large, to fit a kernel whole.

A fit of small rank has few parameters. Its gradient says whether, and in which direction, it lacks rank; the
fit of the next rank begins there. A local minimum lacks rank that a better one does not, so the last rank and
the one below it are tried from several starts before the integer is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.decision.edge import ALLOWED, GAP, GREY, MORE_DRAWS, NEEDED, NEGLIGIBLE
from rankprobe.decision.noise import Law, degrees_of_freedom, gaussian, signal_score
from rankprobe.decision.score import FLOOR, Score
from rankprobe.decision.verdict import Verdict, short_by
from rankprobe.solver import Fit, Kernel

EXACT = 1e-12
"""Share of the squares of Y below which a fit leaves rounding, which is no noise to test against."""

ROUNDS = 3
"""Most times that a finished fit, which may show what an unfinished one hid, is grown again."""

TAIL = 2.0
"""How fast the limit rises with the parameters an equation."""

AGREE = 1e-2
"""Residuals that differ by less than this share are of one minimum."""


def grown(fit: Fit, by: int) -> Kernel:
    """The kernel of ``fit`` with ``by`` more directions, those in which the loss falls fastest, at zero."""
    xp = array_namespace(fit.kernel.left)
    kernel = fit.kernel
    steepest = fit.curvature.scaled(fit.lin.ambient_gradient(), -1.0, FLOOR)
    steepest = steepest - kernel.left @ (kernel.left.T @ steepest)
    steepest = steepest - (steepest @ kernel.right) @ kernel.right.T
    more = Kernel.of(steepest, by)
    return Kernel(
        xp.concat([kernel.left, more.left], axis=1),
        xp.concat([kernel.values, 0.0 * more.values], axis=0),
        xp.concat([kernel.right, more.right], axis=1),
    )


@dataclass(eq=False)
class Growth:
    """Finds the least sufficient rank from below.

    nothing : the fit at rank 0. refit : fits kernels of the rank of its argument, starting there; finish :
    the same, to the end. starts : other kernels of a rank to start from. most : largest rank that the data
    could determine. law : of the noise.
    """

    nothing: Fit
    refit: Callable[[Kernel], Fit]
    finish: Callable[[Kernel], Fit]
    starts: Callable[[int], Iterable[Kernel]]
    most: int
    rng: np.random.Generator
    law: Law = gaussian
    residuals: dict[int, list[float]] = field(default_factory=dict)
    """Of every start tried, by rank."""

    def __post_init__(self) -> None:
        xp = array_namespace(self.nothing.kernel.left)
        outputs = self.nothing.lin.problem.outputs
        self._total = float(xp.sum(outputs * outputs))
        self.fits = {0: self.nothing}
        self._scores: dict[int, Score] = {}

    def score(self, rank: int) -> Score:
        """The score test of the best fit at ``rank``."""
        if rank not in self._scores:
            self._scores[rank] = Score(self.fits[rank], self.rng, self.law)
            if abs(self._scores[rank].score) < 2 * NEEDED:
                self._scores[rank].simulate(MORE_DRAWS)
        return self._scores[rank]

    def sufficient(self, rank: int, limit: float | None = None) -> bool:
        """Whether the best fit at ``rank`` leaves no more than noise, by a score of ``limit``."""
        fit = self.fits[rank]
        if limit is None:
            # The law of the noise is of first order: short of equations, its tail is longer than simulated.
            limit = NEEDED * (1.0 + TAIL * degrees_of_freedom(fit) / fit.lin.problem.equations)
        if fit.rss <= EXACT * self._total:
            return True
        if rank == 0 and fit.curvature.mean <= 0.0:
            # A linear mixer of rank 0 has no gradient; what rank 1 explains tells instead.
            if 1 not in self.fits:
                self.try_from(1, self.starts(1))
            return signal_score(self.fits[1]) <= limit
        return self.score(rank).score <= limit

    def try_from(self, rank: int, kernels: Iterable[Kernel]) -> None:
        """Fit from each kernel and keep the best."""
        for kernel in kernels:
            fit = self.refit(kernel)
            self.residuals.setdefault(rank, []).append(fit.rss)
            if rank not in self.fits or fit.rss < self.fits[rank].rss:
                self.fits[rank] = fit
                self._scores.pop(rank, None)

    def agreeing(self, rank: int) -> tuple[int, int]:
        """Starts that reached the least residual at ``rank``, and starts in all."""
        tried = self.residuals.get(rank, [self.fits[rank].rss])
        return sum(rss <= (1 + AGREE) * min(tried) + EXACT * self._total for rss in tried), len(tried)

    def decide(self) -> Verdict:
        """Grow until a fit leaves noise; then see whether less would do, and finish what is left."""
        rank = 0
        for _ in range(ROUNDS):
            rank = self._down(self._up(rank))
            if rank:
                self._finish(rank)
            if rank == self.most or self.sufficient(rank):
                break
        return self._verdict(rank)

    def _up(self, rank: int) -> int:
        """The first rank that suffices from several starts, or the largest."""
        while rank < self.most and not self.sufficient(rank):
            if self.fits[rank].curvature.mean <= 0.0:
                rank += 1
                continue
            by = min(max(1, self.score(rank).above() // 2), self.most - rank)
            self.try_from(rank + by, [grown(self.fits[rank], by)])
            rank += by
            if self.sufficient(rank):
                self.try_from(rank, self.starts(rank))
        return rank

    def _down(self, rank: int) -> int:
        """The last rank from ``rank`` downwards that suffices."""
        while rank > 1:
            self.try_from(rank - 1, [self.fits[rank].kernel.truncated(rank - 1), *self.starts(rank - 1)])
            if not self.sufficient(rank - 1):
                break
            rank -= 1
        return rank

    def _finish(self, rank: int) -> None:
        self.fits[rank] = self.finish(self.fits[rank].kernel)
        self._scores.pop(rank, None)

    def _verdict(self, rank: int) -> Verdict:
        kernel = self.fits[rank].kernel
        top = min(int(kernel.left.shape[0]), int(kernel.right.shape[0]))
        if not self.sufficient(rank):
            return Verdict(rank, top, f"rank {rank} leaves {self._words(rank)}")
        if self.fits[rank].rss <= EXACT * self._total:
            return Verdict(rank, rank, f"rank {rank} fits to rounding, less does not")
        upper = rank
        while upper < min(rank + GREY, self.most) and not self.sufficient(upper, ALLOWED):
            upper += 1
            if upper not in self.fits:
                self.try_from(upper, [grown(self.fits[upper - 1], 1)])
                self._finish(upper)
        if not self.sufficient(upper, ALLOWED):
            upper = top
        after = self._words(rank)
        reason = f"rank {rank} leaves {after}"
        if rank:
            reason = f"rank {rank - 1} leaves {self._words(rank - 1)}, {reason}"
        value, noise, gap = self._beside(rank)
        if value < gap * noise:
            upper, reason = top, f"{reason}; weaker ones could hide in the noise"
        return Verdict(rank, upper, reason, short_by(value, noise, gap))

    def _words(self, rank: int) -> str:
        fit = self.fits[rank]
        score = -math.inf if fit.curvature.mean <= 0.0 else self.score(rank).score
        return f"a direction {score:.1f} standard deviations above noise" if score > -math.inf else "all"

    def _overfitted(self, rank: int) -> float:
        """What one rank more takes: more than simulated noise, where a fit is far from linear in it."""
        if rank >= self.most:
            return math.inf
        if rank + 1 not in self.fits:
            self.try_from(rank + 1, [grown(self.fits[rank], 1)])
        return _last_value(self.fits[rank + 1])

    def _beside(self, rank: int) -> tuple[float, float, float]:
        """The last value counted, the noise beside it, and how far the one must stand above the other."""
        fit = self.fits[rank]
        if fit.curvature.mean <= 0.0:
            return 0.0, 1.0, GAP
        xp = array_namespace(fit.kernel.left)
        if rank:
            return _last_value(fit), max(self.score(rank).noise, self._overfitted(rank)), GAP
        norms = [float(xp.linalg.matrix_norm(kernel, ord=2)) for kernel in self.score(0).hidden()]
        return NEGLIGIBLE, float(np.mean(norms)), 1.0


def _last_value(fit: Fit) -> float:
    """The least singular value of a fit in the metric of the score test."""
    xp = array_namespace(fit.kernel.left)
    values = xp.linalg.svdvals(fit.curvature.scaled(fit.kernel.matrix(), 0.5, FLOOR))
    return float(values[fit.kernel.rank - 1])
