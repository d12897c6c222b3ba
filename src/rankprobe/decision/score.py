"""The score test: does the gradient of a fit ask for more rank than the fit has?

At a fit of sufficient rank the gradient over all kernels is noise. Its largest singular value outside the
fit's own ranges is compared with that of simulated noise. Only the small fit is linearized, so the law of the
noise holds on few sequences, where a kernel fitted whole is far from linear in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.edge import ONE_IN_TWENTY, solved
from rankprobe.decision.noise import Law, gaussian, noise_alike, standard_score
from rankprobe.solver import Fit

DRAWS, FEW = 8, 3

FLOOR = 1e-2
"""Share of the mean curvature below which a key direction counts as this well seen."""


def score_for_more(fit: Fit, rng: np.random.Generator, law: Law = noise_alike) -> float:
    """Standard score of the best direction outside ``fit``'s rank; about 3 and above it is no noise.

    A draw costs one product: a rank found on few sequences is confirmed so on many.
    """
    most = min(int(fit.kernel.left.shape[0]), int(fit.kernel.right.shape[0]))
    if fit.kernel.rank >= most or fit.curvature.mean <= 0.0:
        return -math.inf
    noise = [_top(_outside(fit, fit.lin.ambient_gradient(law(fit, rng)))) for _ in range(DRAWS)]
    return standard_score(_top(_outside(fit, fit.lin.ambient_gradient())), noise)


def unevenness(fit: Fit, rng: np.random.Generator, law: Law) -> float:
    """How much larger, squared, the best direction of noise of a ``law`` is than that of even noise."""
    sizes = [
        float(np.mean([_top(_outside(fit, fit.lin.ambient_gradient(of(fit, rng)))) for _ in range(FEW)]))
        for of in (law, gaussian)
    ]
    return (sizes[0] / max(sizes[1], 1e-300)) ** 2


@dataclass(eq=False)
class Score:
    """The score test of one fit, with noise from which the fit has taken what its parameters can.

    Values are singular values of a kernel outside the fit's ranges in the metric K S^{1/2}
    (:meth:`Curvature.scaled`), where noise is alike in all key directions.
    """

    fit: Fit
    rng: np.random.Generator
    law: Law = gaussian
    draws: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        xp = array_namespace(self.fit.kernel.left)
        outside = _outside(self.fit, self.fit.lin.ambient_gradient())
        self.values = [float(value) for value in xp.linalg.svdvals(outside)]
        self.tops: list[float] = []
        self.simulate(DRAWS)

    def simulate(self, draws: int) -> None:
        """Extend the simulation to ``draws`` draws."""
        lin = self.fit.lin
        while len(self.tops) < draws:
            noise = self.law(self.fit, self.rng)
            if self.fit.kernel.rank:
                taken = lin.push(solved(self.fit, lin.pull_projected(noise)))
                noise = [part - other for part, other in zip(noise, taken, strict=True)]
            self.draws.append(_outside(self.fit, lin.ambient_gradient(noise)))
            self.tops.append(_top(self.draws[-1]))

    @property
    def score(self) -> float:
        """Standard score of the largest value against noise alone."""
        return standard_score(self.values[0], self.tops) if self.values else -math.inf

    @property
    def noise(self) -> float:
        """Mean of the largest value that noise alone gives."""
        return float(np.mean(self.tops))

    def above(self) -> int:
        """How many values are larger than noise gives in any draw."""
        return sum(value > max(self.tops) for value in self.values)

    def hidden(self) -> list[Array]:
        """Kernels [p_q, p_k] that noise alone puts outside the fit's ranges, one a draw."""
        return [self.fit.curvature.scaled(draw, -0.5, FLOOR) for draw in self.draws]

    def printed(self, tokens: Callable[[Array], Array]) -> float:
        """Noise edge in token units, passed by noise 1 in 20 times; ``tokens`` maps [p_q, p_k] to [d, d]."""
        tops = [_top(tokens(kernel)) for kernel in self.hidden()]
        return float(np.mean(tops)) + ONE_IN_TWENTY * float(np.std(tops, ddof=1))


def _outside(fit: Fit, gradient: Array) -> Array:
    """A gradient [p_q, p_k], scaled to even noise, outside the fit's two ranges."""
    xp = array_namespace(gradient)
    scaled = fit.curvature.scaled(gradient, -0.5, FLOOR)
    left = fit.kernel.left
    right = xp.linalg.qr(fit.curvature.scaled(fit.kernel.right.T, 0.5, FLOOR).T)[0]
    scaled = scaled - left @ (left.T @ scaled)
    return scaled - (scaled @ right) @ right.T


def _top(matrix: Array) -> float:
    return float(array_namespace(matrix).linalg.matrix_norm(matrix, ord=2))
