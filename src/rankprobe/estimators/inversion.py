"""What is inverted and what comes of it: the task, its outcome, and their units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rankprobe import spectra
from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.decision.edge import deviation
from rankprobe.decision.noise import noise_sigma, signal_score
from rankprobe.decision.structure import Structure
from rankprobe.decision.verdict import Verdict
from rankprobe.estimators.model import Kind, Model, Sample
from rankprobe.estimators.result import Status
from rankprobe.estimators.rounding import Rounding
from rankprobe.estimators.source import Sampler
from rankprobe.solver import Fit, FittedValueMap, Kernel, KnownValueMap, Settings, ValueMap, fit

EQUATIONS_PER_PARAMETER = 12
"""Size of the first sample, in observations per unknown."""

ROOM = 2.0
"""Observations an unknown without which no rank is tried."""

WARM = Settings(ridge=1e-8, damping=1e-3, outer=15, decrement=0.05)
"""A fit that starts next to its answer."""


@dataclass(frozen=True, eq=False)
class Task:
    """What to invert: data, kind of map, and what is known.

    value_map : V [d, d_v] if known. scale : factor of the logits divided out of the printed kernel.
    """

    sampler: Sampler
    kind: Kind
    causal: bool
    bias: bool
    scale: float
    residual: bool = False
    value_map: Array | None = None
    max_rank: int | None = None
    most_sequences: int | None = None
    report: Callable[[str], None] | None = None

    @property
    def sequences(self) -> int:
        available = self.sampler.source.sequences
        return available if self.most_sequences is None else min(available, self.most_sequences)


@dataclass(frozen=True, eq=False)
class Inversion:
    """A decided fit: ``fit`` has rank ``verdict.rank``; singular values are in token units."""

    model: Model
    fit: Fit
    verdict: Verdict
    parametrization: str
    kernel: Kernel
    noise_edge: float | None
    sigma: float
    energy_error: float
    """Standard error of the energy rank."""
    r2_heldout: float | None
    heldout_ratio: float | None
    """Held-out over training noise variance: about 1 where the fit is right."""
    sequences: int
    converged: bool
    rounded: float
    """Share of the noise found that the rounding of the stored numbers explains."""
    structure: Structure
    """Whether what the fit leaves is noise."""
    predicts: bool
    """Whether the fit explains anything of sequences it has not seen."""
    signal: float
    """Standard score of what the inputs explain of the outputs at all, whatever the kernel."""


@dataclass(frozen=True, eq=False)
class Refusal:
    """Why no kernel was fitted; ``rank`` is 0 where none is needed, None where none can be told."""

    status: Status
    message: str
    rank: int | None = None


def too_few(sequences: int, unknowns: int, need: int, ample: int) -> Refusal:
    """More unknowns than the sequences have equations; ``ample`` sequences make the answer clear."""
    return Refusal(
        Status.NOT_IDENTIFIABLE,
        f"{sequences} sequences are too few for {unknowns} unknowns; at least {need} are needed, "
        f"about {max(need, ample)} for a clear answer",
    )


def values_of(task: Task, model: Model) -> ValueMap:
    """The value map of a task, known or to be fitted, in the features and outputs of ``model``."""
    if task.value_map is None:
        return FittedValueMap()
    xp = array_namespace(task.value_map)
    # Known V acts on the tokens themselves, written in the whitened features: x V = f (Tᵀ V) where x = T f.
    dual = model.value.dual()
    W = dual[: task.sampler.source.dim, :].T @ task.value_map
    if model.even is not None:
        W = W @ model.even
    like = {"dtype": W.dtype, "device": W.device}
    p_v, width = model.value.dimension, int(W.shape[1])
    # Free beside W: the bias of the values, and all of what Y is linear in without being mixed. The rows of a
    # linear mixer do not sum to one: the bias of its values and that of the outputs differ.
    extra = p_v if model.residual else int(model.bias and model.kind != "softmax")
    constant = dual[-1:, :].T if model.bias else xp.zeros((p_v, 0), **like)
    count = int(constant.shape[1])
    if count + extra == 0:
        return KnownValueMap(W)
    free = xp.concat(
        [
            xp.concat([constant, xp.zeros((p_v, extra), **like)], axis=1),
            xp.concat([xp.zeros((extra, count), **like), xp.eye(extra, **like)], axis=1),
        ],
        axis=0,
    )
    return KnownValueMap(xp.concat([W, xp.zeros((extra, width), **like)], axis=0), free)


def unit_of(task: Task, model: Model, W: Array) -> float:
    """Factor from fitted kernel to printed one: logit scale, and ‖V‖_F² = d_v where only K·V is seen."""
    unit = 1.0 / task.scale
    if model.kind != "softmax" and task.value_map is None:
        xp = array_namespace(W)
        V = (model.value.whiten @ W[: model.value.dimension, :])[: task.sampler.source.dim, :]
        if model.even is not None:
            V = xp.linalg.solve(model.even, V.T).T
        unit *= float(xp.linalg.matrix_norm(V)) / math.sqrt(task.sampler.source.value_dim)
    return unit


def energy_error(model: Model, fitted: Fit, rank: int) -> float:
    """Standard error of the energy rank of the ``rank`` leading values of a fit, to first order in noise."""
    if rank < 2:
        return 0.0
    tokens = model.in_tokens(fitted.kernel.truncated(rank))
    xp = array_namespace(tokens.left)
    like = {"dtype": tokens.left.dtype, "device": tokens.left.device}
    slope = xp.asarray(spectra.energy_rank_gradient(np.asarray(tokens.values, dtype=float)), **like)
    left = model.query.to_tokens(xp.eye(model.query.dimension, **like)).T @ tokens.left
    right = model.key.to_tokens(xp.eye(model.key.dimension, **like)).T @ tokens.right
    functional = (left * slope) @ right.T
    return deviation(fitted, xp.astype(functional, fitted.kernel.left.dtype))


def decided(
    task: Task,
    model: Model,
    final: Fit,
    verdict: Verdict,
    parametrization: str,
    edge: float | None,
    heldout: tuple[Fit, Sample],
    count: int,
    converged: bool,
    tested: Structure,
    predicts: bool = False,
    rounding: Rounding | None = None,
) -> Inversion:
    """The outcome of a decided fit; ``heldout`` is a fit and sequences it has not seen.

    predicts : known to explain sequences not seen, whatever ``heldout`` says. rounding : of the sequences
    of ``final``, where they are stored coarsely.
    """
    kernel = model.in_tokens(final.kernel)
    kernel = replace(kernel, values=kernel.values * unit_of(task, model, final.lin.W))
    sigma = noise_sigma(final)
    error = energy_error(model, final, final.kernel.rank)
    seen, sample = heldout
    r2, ratio = None, None
    variation = sample.variation()
    residual = float(np.sum(model.squared_errors(seen, sample)))
    if variation > 0:
        r2 = 1.0 - residual / variation
    entries = sample.rows * int(sample.Y.shape[2])
    if seen.rss > 0 and entries:
        ratio = residual / entries / noise_sigma(seen) ** 2
    return Inversion(
        model,
        final,
        verdict,
        parametrization,
        kernel,
        edge,
        sigma,
        error,
        r2,
        ratio,
        count,
        converged,
        0.0 if rounding is None else rounding.share(final),
        tested,
        predicts or r2 is None or r2 > 0.0,
        signal_score(final),
    )


def held_out(
    task: Task, model: Model, final: Fit, values: ValueMap, count: int, rng: np.random.Generator
) -> tuple[Fit, Sample]:
    """A fit and sequences it has not seen: fresh ones if there are, else an eighth left out of a refit."""
    fresh = min(task.sequences - count, max(32, count // 4))
    if fresh >= min(32, max(1, count // 8)):
        return final, task.sampler.take(count + fresh).part(count, count + fresh)
    left_out = max(1, count // 8)
    sample = task.sampler.take(count)
    problem = model.problem(sample.part(0, count - left_out), final.kernel.left.dtype)
    fewer = fit(problem, final.kernel, values, rng, WARM)
    return fewer, sample.part(count - left_out, count)
