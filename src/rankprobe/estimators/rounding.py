"""Rounding of the stored numbers as noise: errors in the tokens, which every query of a sequence feels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.noise import noise_like, noise_sigma
from rankprobe.estimators.model import ROUNDING, Model, Sample
from rankprobe.solver import Fit
from rankprobe.solver.problem import apply


def rounding_of(model: Model, sample: Sample, storage: str) -> Rounding | None:
    """The rounding of a coarse storage type as a law of noise; None where the type is fine."""
    return Rounding(model, sample, ROUNDING[storage]) if storage in ROUNDING else None


@dataclass(eq=False)
class Rounding:
    """Noise whose floor is the rounding of X and Y to a relative ``unit``.

    A rounded key moves the outputs of a whole sequence, so this noise is neither independent between tokens
    nor even. It is drawn by rounding once more: what a fit's own outputs change by when the tokens move as
    much as rounding moved them. What the residual holds beyond that is drawn as Gaussian.
    """

    model: Model
    sample: Sample
    unit: float

    def __call__(self, fit: Fit, rng: np.random.Generator) -> list[Array]:
        """One draw, in the blocks of ``fit``."""
        tokens, sigma = self._tokens_rounded(fit), noise_sigma(fit)
        size = self._size(fit, tokens)
        rest = noise_like(fit, math.sqrt(max(sigma**2 - size**2, 0.0)), rng)
        drawn = self._draw(fit, rng, tokens)
        return [part * min(1.0, sigma / size) + other for part, other in zip(drawn, rest, strict=True)]

    def share(self, fit: Fit) -> float:
        """Share of the residual's variance that rounding explains, at most 1."""
        return min(1.0, (self._size(fit, self._tokens_rounded(fit)) / noise_sigma(fit)) ** 2)

    def _tokens_rounded(self, fit: Fit) -> bool:
        """Whether the tokens were rounded after the outputs were made: a half-precision model's were not."""
        least, most = self._size(fit, False), self._size(fit, True)
        return 2.0 * noise_sigma(fit) ** 2 > least**2 + most**2

    def _size(self, fit: Fit, tokens: bool) -> float:
        """Root mean square of the rounding's share in the outputs of ``fit``."""
        known = self._sizes.setdefault(fit, {})
        if tokens not in known:
            total = 0.0
            for part in self._draw(fit, np.random.default_rng(0), tokens):
                total += float(array_namespace(part).sum(part * part))
            known[tokens] = math.sqrt(total / fit.lin.problem.equations) + 1e-300
        return known[tokens]

    @cached_property
    def _sizes(self) -> WeakKeyDictionary[Fit, dict[bool, float]]:
        return WeakKeyDictionary()

    def _draw(self, fit: Fit, rng: np.random.Generator, tokens: bool) -> list[Array]:
        """What the residual of ``fit`` changes by when Y, and the ``tokens`` if so, are rounded once more."""
        again = replace(self.sample, Y=_moved(self.sample.Y, self.unit, rng))
        if tokens:
            again = replace(again, X=_moved(self.sample.X, self.unit, rng))
        kernel = fit.kernel
        problem = self.model.problem(again, kernel.left.dtype)
        W = array_namespace(kernel.left).astype(fit.lin.W, kernel.left.dtype)
        return [
            part.outputs
            - apply(part.regressors(part.mixer(kernel.left * kernel.values, kernel.right)), W)
            - block.residual
            for part, block in zip(problem.blocks, fit.lin.blocks, strict=True)
        ]


def _moved(values: Array, unit: float, rng: np.random.Generator) -> Array:
    """``values`` [..., d] rounded to ``unit`` on a grid of another scale a column: equal ones move alike."""
    xp = array_namespace(values)
    scale = xp.asarray(2.0 ** rng.uniform(0.0, 1.0, int(values.shape[-1])), device=values.device)
    scaled = values * scale
    size = xp.abs(scaled)
    step = 2.0 * unit * 2.0 ** xp.floor(xp.log2(xp.where(size == 0.0, xp.ones_like(size), size)))
    return xp.round(scaled / step) * step / scale
