"""The noise of a fit: its size, draws of it, and standard scores against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.solver import Fit
from rankprobe.solver.problem import contract

Law = Callable[[Fit, np.random.Generator], list[Array]]
"""Draws noise as the residual of a fit holds it, in the fit's blocks."""

UNEVEN = 2.0
"""Spread of the residual's variances over columns, in units of what even noise gives, that is evened."""

LEAST_SHARE = 1e-4
"""Variance below this share of the mean is not told from zero: rounding, columns that hold nothing."""


def degrees_of_freedom(fit: Fit) -> int:
    """Parameters of a fit: r(p_q + p_k − r) for the kernel, (p_v + c) d_v for the value map."""
    rows, columns = int(fit.kernel.left.shape[0]), int(fit.kernel.right.shape[0])
    W = fit.lin.W
    return fit.kernel.rank * (rows + columns - fit.kernel.rank) + int(W.shape[0]) * int(W.shape[1])


def noise_sigma(fit: Fit) -> float:
    """σ̂ of the residual, with the parameters' degrees of freedom taken off."""
    free = max(fit.lin.problem.equations - degrees_of_freedom(fit), 1)
    return math.sqrt(fit.rss / free)


def noise_like(fit: Fit, sigma: float, rng: np.random.Generator) -> list[Array]:
    """One draw of Gaussian noise of standard deviation ``sigma`` at the real tokens of a fit, in blocks."""
    noise = []
    for block in fit.lin.problem.blocks:
        xp = array_namespace(block.outputs)
        values = sigma * rng.standard_normal(tuple(block.outputs.shape))
        part = xp.asarray(values, dtype=block.outputs.dtype, device=block.outputs.device)
        noise.append(part if block.padding is None else xp.where(block.padding[:, :, None], part, 0.0 * part))
    return noise


def gaussian(fit: Fit, rng: np.random.Generator) -> list[Array]:
    """One draw of the noise that the residual of ``fit`` has the size of."""
    return noise_like(fit, noise_sigma(fit), rng)


def noise_alike(fit: Fit, rng: np.random.Generator) -> list[Array]:
    """The residual with each token's sign drawn anew, in blocks: cheaper, and as uneven as the noise is."""
    rows = max(fit.lin.problem.rows, 1)
    scale = noise_sigma(fit) / math.sqrt(fit.rss / rows / int(fit.lin.problem.outputs.shape[2]) + 1e-300)
    noise = []
    for block in fit.lin.blocks:
        xp = array_namespace(block.residual)
        signs = scale * (2.0 * rng.integers(0, 2, tuple(block.residual.shape[:2])) - 1.0)
        part = xp.asarray(signs, dtype=block.residual.dtype, device=block.residual.device)
        noise.append(block.residual * part[:, :, None])
    return noise


def evened(fit: Fit) -> Array | None:
    """[d_v, d_v] that turns the columns of Y so that their noise is alike and uncorrelated, or None.

    Least squares counts every column alike. Where noise is much larger in some combination of columns than in
    another (heads mixed by an output projection, outputs scaled by hand), it hides in the one what the other
    shows. None where the residual is as even as that of even noise is by chance. The mean variance is kept.
    """
    problem = fit.lin.problem
    xp = array_namespace(problem.outputs)
    width = int(problem.outputs.shape[2])
    parts = [xp.astype(block.residual, xp.float64) for block in fit.lin.blocks]
    # Noise that the tokens of a sequence share is so many times fewer draws of it.
    together = sum(float(xp.sum(xp.sum(part, axis=1) ** 2)) for part in parts)
    shared = max(together / max(sum(float(xp.sum(part * part)) for part in parts), 1e-300), 1.0)
    free = problem.rows / shared - degrees_of_freedom(fit) / width
    if width < 2 or free < 2 * width:
        return None
    covariance = reduce(lambda a, b: a + b, map(contract, parts, parts)) / free
    eigenvalues, vectors = xp.linalg.eigh(covariance)
    mean = float(xp.mean(eigenvalues))
    spread = float(eigenvalues[-1]) / max(float(eigenvalues[0]), 1e-300)
    # Eigenvalues of a sample covariance of even noise spread as (1 ± √(d_v / N))².
    chance = ((1 + math.sqrt(width / free)) / (1 - math.sqrt(width / free))) ** 2
    if mean <= 0.0 or spread < UNEVEN * chance:
        return None
    return (vectors * xp.sqrt(mean / xp.clip(eigenvalues, LEAST_SHARE * mean, None))) @ vectors.T


def signal_score(fit: Fit) -> float:
    """Standard score of the F statistic of the value map: does the mixed input explain the output at all."""
    problem = fit.lin.problem
    xp = array_namespace(problem.outputs)
    columns = xp.sum(problem.outputs, axis=(0, 1)) / max(problem.rows, 1)
    total = float(xp.sum(problem.outputs * problem.outputs)) - problem.rows * float(xp.sum(columns * columns))
    used = max(degrees_of_freedom(fit) - int(problem.outputs.shape[2]), 1)
    free = max(problem.equations - degrees_of_freedom(fit), 1)
    noise = fit.rss / free
    if noise <= 0:
        return math.inf if total > 0 else 0.0
    return ((total - fit.rss) / noise - used) / math.sqrt(2 * used * (1 + used / free))


def standard_score(value: float, draws: Sequence[float]) -> float:
    """Standard score of ``value`` among ``draws`` of noise, deflated for how few they are."""
    count = len(draws)
    deviation = float(np.std(draws, ddof=1))
    if deviation <= 0.0:
        return -math.inf
    return (value - float(np.mean(draws))) / (deviation * math.sqrt(1 + 1 / count) * (1 + 1 / count))
