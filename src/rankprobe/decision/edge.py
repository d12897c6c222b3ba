"""The noise edge: how large a singular value noise alone puts into an estimated full kernel.

At the solution, noise E moves the kernel by δK = (JᵀPJ)^{-1} Jᵀ P E. If the true rank is r, singular value
r + 1 of the estimate is to first order ‖U⊥ᵀ δK V⊥‖, with U⊥, V⊥ outside the leading r singular spaces. Its
law is simulated at the solution, so anisotropic tokens, masks and few sequences are in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.noise import Law, gaussian, noise_sigma, standard_score
from rankprobe.decision.verdict import Verdict, short_by
from rankprobe.solver import Fit, Kernel
from rankprobe.solver.conjugate_gradients import conjugate_gradients
from rankprobe.solver.kernel import Tangent

NEEDED, ALLOWED = 4.5, 1.7
"""Standard scores of a singular value against the noise: surely signal above, surely noise below."""

GAP = 2.0
"""A last singular value less than this many times the noise beside it leaves room for others just below."""

NEGLIGIBLE = 0.03
"""Rank 0 is settled where the logits that noise could hide have a smaller standard deviation than this."""

ONE_IN_TWENTY = 1.645
"""Standard score that a normal law passes one time in twenty."""

GREY = 2
"""Most values neither surely signal nor surely noise that an interval ends with: more are a slow decline."""

FIRST_DRAWS, MORE_DRAWS = 8, 60


def deviation(fit: Fit, functional: Array) -> float:
    """Standard deviation that the noise of a fit gives ⟨functional, K⟩, for a functional [p_q, p_k]."""
    kernel = fit.kernel
    along = kernel.tangent(functional @ kernel.right, functional.T @ kernel.left)
    return noise_sigma(fit) * math.sqrt(max(along.dot(solved(fit, along)), 0.0))


def solved(fit: Fit, gradient: Tangent) -> Tangent:
    """(JᵀPJ)^{-1} of a gradient on the tangent space of a fit."""
    damping = 1e-8 * fit.curvature.mean
    return conjugate_gradients(
        lambda v: fit.lin.normal(v).plus(damping, v),
        lambda g: fit.curvature.solve(fit.kernel, g, damping),
        gradient,
        0.03,
        100,
    ).x


def noise_draw(fit: Fit, law: Law, rng: np.random.Generator) -> Array:
    """One δK [p_q, p_k] that noise of a ``law`` gives at a full fit."""
    change = solved(fit, fit.lin.pull_projected(law(fit, rng)))
    moved = change.first @ fit.kernel.right.T
    return moved if change.second is None else moved + fit.kernel.left @ change.second.T


@dataclass(eq=False)
class NoiseEdge:
    """Simulated noise in a full-rank kernel estimate.

    Singular values are compared in the metric K S^{1/2} (:meth:`Curvature.scaled`), where noise is alike
    in all key directions; the rank is the same in any metric.
    """

    fit: Fit
    rng: np.random.Generator
    law: Law = gaussian

    def __post_init__(self) -> None:
        self.draws: list[Array] = []
        self._scaled: list[Array] = []
        self.estimate = self._scale(self.fit.kernel.matrix())
        self.spectrum = Kernel.of(self.estimate, self.fit.kernel.rank)

    def _scale(self, matrix: Array) -> Array:
        return self.fit.curvature.scaled(matrix, 0.5)

    def simulate(self, draws: int) -> None:
        """Extend the simulation to ``draws`` draws."""
        while len(self.draws) < draws:
            change = noise_draw(self.fit, self.law, self.rng)
            self.draws.append(change)
            self._scaled.append(self._scale(change))

    def score(self, rank: int) -> float:
        """Standard score of singular value rank + 1 against noise alone, given rank ``rank``."""
        if rank >= self.spectrum.rank:
            return -math.inf
        return standard_score(float(self.spectrum.values[rank]), self._noise(rank))

    def _noise(self, rank: int) -> list[float]:
        """The largest singular value that each draw of noise alone puts beside ``rank`` ones."""
        xp = array_namespace(self.estimate)
        left, right = self.spectrum.left[:, :rank], self.spectrum.right[:, :rank]
        tops = []
        for change in self._scaled:
            rest = change - left @ (left.T @ change)
            rest = rest - (rest @ right) @ right.T
            tops.append(float(xp.linalg.matrix_norm(rest, ord=2)))
        return tops

    def decide(self) -> Verdict:
        """Count singular values above the edge, one after the other, with more draws near it."""
        self.simulate(FIRST_DRAWS)
        verdict = self._count()
        if not verdict.settled or (verdict.rank and self.score(verdict.rank - 1) < 2 * NEEDED):
            self.simulate(MORE_DRAWS)
            verdict = self._count()
        return verdict

    def _count(self) -> Verdict:
        top = self.spectrum.rank
        rank = next((r for r in range(top) if self.score(r) <= NEEDED), top)
        # A score is deflated for few draws, to claim a value with care; to rule one out it must not be.
        few = (1 + 1 / len(self.draws)) ** 1.5
        upper = next((r for r in range(rank, top) if few * self.score(r) <= ALLOWED), top)
        reason = "no singular value is above the noise"
        if rank:
            score, after = self.score(rank - 1), self.score(rank)
            reason = f"singular value {rank} is {score:.1f} standard deviations above the noise"
            reason += f", value {rank + 1} {after:.1f}" if rank < top else ", and there are no more"
        value, noise, gap = self._beside(rank)
        if value < gap * noise or upper > rank + GREY:
            upper, reason = top, f"{reason}; weaker ones could hide in the noise"
        return Verdict(rank, upper, reason, short_by(value, noise, gap))

    def _beside(self, rank: int) -> tuple[float, float, float]:
        """The last value counted, the noise beside it, and how far the one must stand above the other.

        Nearer, something needed could hide in the noise.
        """
        if rank:
            return float(self.spectrum.values[rank - 1]), float(np.mean(self._noise(rank))), GAP
        # In whitened features a singular value is the standard deviation of the logits it makes.
        norms = [float(array_namespace(change).linalg.matrix_norm(change, ord=2)) for change in self.draws]
        return NEGLIGIBLE, float(np.mean(norms)), 1.0

    def printed(self, rank: int, tokens: Callable[[Array], Array]) -> float:
        """Edge in the units of the printed singular values: noise beside ``rank`` values passes it 1 in 20.

        The quantile of a normal law with the draws' mean and deviation; few draws have no such quantile.

        ``tokens`` maps a matrix [p_q, p_k] to token units [d, d].
        """
        xp = array_namespace(self.estimate)
        kernel = Kernel.of(tokens(self.fit.kernel.matrix()), rank)
        tops = []
        for change in self.draws:
            rest = tokens(change)
            rest = rest - kernel.left @ (kernel.left.T @ rest)
            rest = rest - (rest @ kernel.right) @ kernel.right.T
            tops.append(float(xp.linalg.matrix_norm(rest, ord=2)))
        return float(np.mean(tops)) + ONE_IN_TWENTY * float(np.std(tops, ddof=1))
