"""The score test: does the gradient of a fit ask for more rank than the fit has?

At a fit of sufficient rank the gradient over all kernels is noise. Its largest singular value outside the
fit's own ranges is compared with that of simulated noise. A draw costs one product, not a solve as the noise
edge does, so that a rank found on few sequences can be confirmed on many.
"""

from __future__ import annotations

import math

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.noise import noise_alike, standard_score
from rankprobe.solver import Fit

DRAWS = 8


def score_for_more(fit: Fit, rng: np.random.Generator) -> float:
    """Standard score of the best direction outside ``fit``'s rank; about 3 and above it is no noise."""
    most = min(int(fit.kernel.left.shape[0]), int(fit.kernel.right.shape[0]))
    if fit.kernel.rank >= most or fit.curvature.mean <= 0.0:
        return -math.inf
    noise = [_outside(fit, fit.lin.ambient_gradient(noise_alike(fit, rng))) for _ in range(DRAWS)]
    return standard_score(_outside(fit, fit.lin.ambient_gradient()), noise)


def _outside(fit: Fit, gradient: Array) -> float:
    """Largest singular value of a gradient [p_q, p_k], scaled to even noise, outside the fit's two ranges."""
    xp = array_namespace(gradient)
    scaled = fit.curvature.scaled(gradient, -0.5, 1e-2)
    left = fit.kernel.left
    right = xp.linalg.qr(fit.curvature.scaled(fit.kernel.right.T, 0.5, 1e-2).T)[0]
    scaled = scaled - left @ (left.T @ scaled)
    scaled = scaled - (scaled @ right) @ right.T
    return float(xp.linalg.matrix_norm(scaled, ord=2))
