"""A learned kernel in the estimators' terms: its spectrum in the quotient, its noise edge, its measures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankprobe import spectra
from rankprobe.decision.edge import NoiseEdge
from rankprobe.decision.noise import noise_like
from rankprobe.estimators.invert import FULL_LIMIT
from rankprobe.estimators.model import Model
from rankprobe.solver import FittedValueMap, Kernel, Settings, fit
from rankprobe.training.data import Pairs
from rankprobe.training.groups import Trained

MOMENTS = 48
"""Observations per unknown on which the noise around a kernel is simulated."""


@dataclass(frozen=True)
class Learned:
    """What a student has learned, in the units of :class:`rankprobe.Estimate`.

    ``rank`` counts the singular values above the noise edge, ``rank_upper`` those that may be; measures
    ending in ``_cut`` leave out what is below. ``effective_rank_corrected`` takes the Marchenko–Pastur bias
    off the raw one (:func:`corrected`). Without a noise edge (wide tokens, see ``FULL_LIMIT``) they are None.
    """

    singular_values: tuple[float, ...]
    noise_edge: float | None
    rank: int | None
    rank_upper: int | None
    effective_rank: float
    effective_rank_corrected: float
    effective_rank_cut: float | None
    energy_rank: float
    energy_rank_cut: float | None
    stable_rank: float


def corrected(effective_rank: float, dimension: int, sequences: int) -> float:
    """R of R̂ = R + (d − R)/(2n): the effective rank without the noise bulk's first-order bias."""
    return (2 * sequences * effective_rank - dimension) / max(2 * sequences - 1, 1)


def learned(pairs: Pairs, student: Trained, *, edge: bool = True, seed: int = 0) -> Learned:
    """Measure one student's kernel; ``edge`` simulates the noise around it, with this seed."""
    values = spectrum(pairs, student)
    limit, rank, upper = _edge(pairs, student, seed) if edge else (None, None, None)
    kept = None if rank is None else values[:rank]
    effective = spectra.effective_rank(values)
    return Learned(
        singular_values=tuple(float(value) for value in values),
        noise_edge=limit,
        rank=rank,
        rank_upper=upper,
        effective_rank=effective,
        effective_rank_corrected=corrected(effective, min(student.kernel.shape), pairs.sample.sequences),
        effective_rank_cut=None if kept is None else spectra.effective_rank(kept),
        energy_rank=spectra.energy_rank(values),
        energy_rank_cut=None if kept is None else spectra.energy_rank(kept),
        stable_rank=spectra.stable_rank(values),
    )


def spectrum(pairs: Pairs, student: Trained) -> np.ndarray:
    """Singular values of P_q K P_k in token units; a linear link's with ‖V‖_F² = d_v, as the estimators'."""
    model = student.model
    matrix = _in_tokens(model, student.kernel)
    values = np.linalg.svd(matrix, compute_uv=False)[: min(student.kernel.shape)]
    return np.asarray(values * _gauge(model, student.values))


def _in_tokens(model: Model, matrix: np.ndarray) -> np.ndarray:
    return np.asarray(model.query.to_tokens(model.key.to_tokens(matrix.T).T))


def _gauge(model: Model, W: np.ndarray) -> float:
    """What a linear mixer's kernel has to be multiplied with so that ‖V‖_F² = d_v; 1 for softmax."""
    if model.kind == "softmax":
        return 1.0
    features = int(model.value.whiten.shape[1])
    V = (model.value.whiten @ W[:features])[: int(model.value.printed.shape[0])]
    return float(np.linalg.norm(V)) / math.sqrt(int(W.shape[1]))


def _edge(pairs: Pairs, student: Trained, seed: int) -> tuple[float | None, int | None, int | None]:
    """Noise edge, rank and its upper end, with the noise simulated at the learned kernel.

    Noise in a kernel falls with the square root of the sequences and depends on their moments alone, so
    it is simulated on as many as give those, with σ scaled to what all of them leave.
    """
    quotient, model = pairs.quotient, student.model
    p_q, p_k = quotient.query.dimension, quotient.key.dimension
    if max(p_q, p_k) > FULL_LIMIT:
        return None, None, None
    width = int(pairs.sample.Y.shape[2])
    unknowns = p_q * p_k + quotient.value.dimension * width
    count = math.ceil(MOMENTS * unknowns / (pairs.tokens() * width))
    sample = pairs.sample.part(0, min(count, pairs.sample.sequences))
    # From the coordinates trained in to the whitened ones, where the noise is simulated.
    tokens = model.query.whiten @ student.kernel @ model.key.whiten.T
    matrix = pairs.scale * quotient.query.dual().T @ tokens @ quotient.key.dual()
    rng = np.random.default_rng(seed)
    start = Kernel.of(matrix, min(matrix.shape))
    at = fit(quotient.problem(sample), start, FittedValueMap(), rng, Settings(ridge=1e-8, outer=0))
    free = max(pairs.sample.rows * width - unknowns, 1)
    sigma = math.sqrt(float(np.sum(student.seen)) / free * sample.rows / pairs.sample.rows)
    found = NoiseEdge(at, rng, lambda fit, rng: noise_like(fit, sigma, rng))
    verdict = found.decide()
    limit = found.printed(verdict.rank, lambda matrix: _in_tokens(quotient, matrix))
    return limit / pairs.scale * _gauge(quotient, at.lin.W), verdict.rank, verdict.upper
