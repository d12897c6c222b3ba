"""The noise of a fit: its size, draws of it, and standard scores against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.solver import Fit


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


def standard_score(value: float, draws: Sequence[float]) -> float:
    """Standard score of ``value`` among ``draws`` of noise, deflated for how few they are."""
    count = len(draws)
    deviation = float(np.std(draws, ddof=1))
    if deviation <= 0.0:
        return -math.inf
    return (value - float(np.mean(draws))) / (deviation * math.sqrt(1 + 1 / count) * (1 + 1 / count))
