"""The realized mixer: energy rank of E_X[A(X)] (method section 4).

For exchangeable tokens E[A] = aI + b11ᵀ, whose energy rank depends on a = E[A_tt] − E[A_ts] alone: it follows
the trace of K, not its rank. It is kept because the paper reports it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankprobe import spectra
from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.estimators.inversion import Inversion, Task
from rankprobe.estimators.result import Estimate

_BLOCK = 256

TOLERANCE = 1e-2
"""Singular values of E[A] below this share of the largest do not count towards its numerical rank."""


def mean_mixer(task: Task, inversion: Inversion) -> Array:
    """E[A] [T, T] of the fitted map over all sequences."""
    kernel = inversion.fit.kernel
    total: Array = 0.0
    for start in range(0, task.sequences, _BLOCK):
        stop = min(start + _BLOCK, task.sequences)
        problem = inversion.model.problem(task.sampler.take(stop).part(start, stop), kernel.left.dtype)
        A = problem.mixer(kernel.left * kernel.values, kernel.right)
        xp = array_namespace(A)
        share = (stop - start) / int(A.shape[0]) if A.shape[0] == 1 else 1.0
        total = total + share * xp.sum(xp.astype(A, xp.float64), axis=0)
    return total / task.sequences


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
        energy_rank_interval=None,
        energy_rank_data=None,
        effective_rank=spectra.effective_rank(values),
        stable_rank=spectra.stable_rank(values),
        singular_values=values,
        singular_values_data=(),
        noise_edge=None,
    )
