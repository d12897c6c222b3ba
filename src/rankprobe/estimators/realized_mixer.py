"""The realized mixer: energy rank of E_X[A(X)] (method section 4).

For exchangeable tokens E[A] = aI + b11ᵀ, whose energy rank depends on a = E[A_tt] − E[A_ts] alone: it follows
the trace of K, not its rank. It is kept because the paper reports it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from array_api_compat import array_namespace

from rankprobe import spectra
from rankprobe.attention import Array
from rankprobe.estimators.inversion import Inversion
from rankprobe.estimators.result import Estimate

TOLERANCE = 1e-2
"""Singular values of E[A] below this share of the largest do not count towards its numerical rank."""


def mean_mixer(inversion: Inversion) -> Array:
    """E[A] [T, T] of the fitted map over the sequences of the fit."""
    blocks = [block.A for block in inversion.fit.lin.blocks]
    xp = array_namespace(blocks[0])
    total = sum(xp.sum(xp.astype(A, xp.float64), axis=0) for A in blocks)
    return total / sum(int(A.shape[0]) for A in blocks)


def realized_mixer(inverted: Estimate, mixer: Array) -> Estimate:
    """The answer on E[A], beside the inversion it comes from."""
    xp = array_namespace(mixer)
    values = tuple(float(value) for value in xp.linalg.svdvals(mixer))
    return replace(
        inverted,
        estimator="realized-mixer",
        message="measures of E[A], the mean mixer: it follows the trace of K, not its rank",
        rank=spectra.numerical_rank(np.asarray(values), TOLERANCE),
        rank_interval=None,
        confidence=None,
        energy_rank=spectra.energy_rank(values),
        energy_rank_data=None,
        effective_rank=spectra.effective_rank(values),
        stable_rank=spectra.stable_rank(values),
        singular_values=values,
        singular_values_data=(),
        noise_edge=None,
    )
