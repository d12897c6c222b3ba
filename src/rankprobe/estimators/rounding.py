"""Rounding of the stored numbers as noise: errors in the tokens, which every query of a sequence feels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

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
        tokens = self._tokens_rounded(fit)
        size = self._size(fit, tokens)
        rest = math.sqrt(max(noise_sigma(fit) ** 2 - size**2, 0.0))
        whole = self._draw(fit, rng, tokens) * min(1.0, noise_sigma(fit) / size)
        parts, start = [], 0
        for extra in noise_like(fit, rest, rng):
            stop = start + int(extra.shape[0])
            parts.append(whole[start:stop, ...] + extra)
            start = stop
        return parts

    def share(self, fit: Fit) -> float:
        """Share of the residual's variance that rounding explains, at most 1."""
        return min(1.0, (self._size(fit, self._tokens_rounded(fit)) / noise_sigma(fit)) ** 2)

    def _tokens_rounded(self, fit: Fit) -> bool:
        """Whether the tokens were rounded after the outputs were made: a half-precision model's were not."""
        least, most = self._size(fit, False), self._size(fit, True)
        return 2.0 * noise_sigma(fit) ** 2 > least**2 + most**2

    def _size(self, fit: Fit, tokens: bool) -> float:
        """Root mean square of the rounding's share in the outputs of ``fit``."""
        key = (id(fit), tokens)
        if key not in self._sizes:
            drawn = self._draw(fit, np.random.default_rng(0), tokens)
            total = float(array_namespace(drawn).sum(drawn * drawn))
            self._sizes[key] = math.sqrt(total / fit.lin.problem.equations) + 1e-300
        return self._sizes[key]

    @cached_property
    def _sizes(self) -> dict[tuple[int, bool], float]:
        return {}

    def _draw(self, fit: Fit, rng: np.random.Generator, tokens: bool) -> Array:
        again = replace(self.sample, Y=_moved(self.sample.Y, self.unit, rng))
        if tokens:
            again = replace(again, X=_moved(self.sample.X, self.unit, rng))
        before, after = self._rest(fit, self.sample), self._rest(fit, again)
        return after - before

    def _rest(self, fit: Fit, sample: Sample) -> Array:
        kernel = fit.kernel
        problem = self.model.problem(sample, kernel.left.dtype)
        W = array_namespace(kernel.left).astype(fit.lin.W, kernel.left.dtype)
        return problem.outputs - apply(
            problem.regressors(problem.mixer(kernel.left * kernel.values, kernel.right)), W
        )


def _moved(values: Array, unit: float, rng: np.random.Generator) -> Array:
    """``values`` [..., d] rounded to ``unit`` on a grid of another scale a column: equal ones move alike."""
    xp = array_namespace(values)
    scale = xp.asarray(2.0 ** rng.uniform(0.0, 1.0, int(values.shape[-1])), device=values.device)
    scaled = values * scale
    size = xp.abs(scaled)
    step = 2.0 * unit * 2.0 ** xp.floor(xp.log2(xp.where(size == 0.0, xp.ones_like(size), size)))
    return xp.round(scaled / step) * step / scale
