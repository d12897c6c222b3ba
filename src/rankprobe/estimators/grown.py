"""Kernels grown from rank 0, where there are too few sequences or too much noise to fit them whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.decision.growth import Growth
from rankprobe.decision.noise import evened, gaussian
from rankprobe.decision.structure import structure
from rankprobe.estimators.inversion import ROOM, WARM, Inversion, Task, decided, held_out, unit_of, values_of
from rankprobe.estimators.model import Model
from rankprobe.estimators.rounding import Rounding, rounding_of
from rankprobe.solver import Fit, Kernel, Settings, ValueMap, fit
from rankprobe.solver.start import first_kernel

GROWING = Settings(damping=0.1, outer=25, stall=1e-3)
"""Fits on the way up: none needs more than to show which direction it lacks."""

FOLDS = 7
"""Parts left out in turn to see whether the kernel predicts."""

LEFT_OUT = replace(WARM, outer=4, last_ridge=1e-4)
"""A refit without one part: short, and with V held where the rest does not determine it."""

CLOSING = replace(WARM, outer=40, decrement=1.0)
"""The last fit. Few sequences leave valleys that a fit goes down slowly and noise does not tell from flat."""


def invert_grown(task: Task, model: Model) -> Inversion:
    """The rank at which the gradient of a fit asks for no more, on all sequences of the task."""
    rng = np.random.default_rng(task.sampler.seed)
    growth = _growth(task, model, rng)
    verdict = growth.decide()
    final = growth.fits[verdict.rank]
    tested = structure(final)
    even = evened(final) if final.converged and not tested.found else None
    if even is not None:
        model = model.evened(even)
        growth = _growth(task, model, rng)
        verdict = growth.decide()
        final = growth.fits[verdict.rank]
        tested = structure(final)
    verdict = replace(verdict, starts=growth.agreeing(verdict.rank))
    values = values_of(task, model)
    edge = None
    if final.curvature.mean > 0.0:
        edge = growth.score(verdict.rank).printed(model.matrix_in_tokens) * unit_of(task, model, final.lin.W)
    heldout = held_out(task, model, final, values, task.sequences, rng)
    return decided(
        task,
        model,
        final,
        verdict,
        "grown",
        edge,
        heldout,
        task.sequences,
        final.converged,
        tested,
        predicts=verdict.rank > 0 and _kernel_predicts(task, model, final, growth.nothing, values, rng),
        rounding=growth.law if isinstance(growth.law, Rounding) else None,
    )


def _growth(task: Task, model: Model, rng: np.random.Generator) -> Growth:
    """Growth on all sequences, which starts also from a fit of more rank than needed and at random."""
    sample = task.sampler.take(task.sequences)
    xp = array_namespace(sample.X)
    values, problem = values_of(task, model), model.problem(sample, xp.float64)
    p_q, p_k = model.query.dimension, model.key.dimension
    width = int(sample.Y.shape[2])
    spare = problem.equations / ROOM - model.value.dimension * width
    free = sample.attention_freedom(task.causal, width)
    most = int(min(_largest(p_q, p_k, min(spare, free / ROOM)), task.max_rank or math.inf))

    def refit(start: Kernel) -> Fit:
        return fit(problem, start, values, rng, GROWING, task.report)

    def finish(start: Kernel) -> Fit:
        return fit(problem, start, values, rng, CLOSING, task.report)

    def starts(rank: int) -> Iterator[Kernel]:
        yield over.kernel.truncated(rank)
        left, right = (
            xp.asarray(np.linalg.qr(rng.standard_normal((size, rank)))[0], device=sample.X.device)
            for size in (p_q, p_k)
        )
        yield Kernel(left, xp.ones_like(left[0, :]) / sample.X.shape[1], right)

    # More rank than needed smooths the way: the fit, cut, is one more start.
    over = refit(first_kernel(problem, values, max(most, 1), rng))
    nothing = refit(first_kernel(problem, values, 1, rng).truncated(0))
    rounding = rounding_of(model, sample, task.sampler.source.storage_dtype)
    return Growth(nothing, refit, finish, starts, most, rng, rounding or gaussian)


def _kernel_predicts(
    task: Task, model: Model, final: Fit, nothing: Fit, values: ValueMap, rng: np.random.Generator
) -> bool:
    """Whether the kernel lowers the error of sequences left out, against no kernel.

    Few sequences leave V so uncertain that neither predicts them well. Whether the kernel helps still shows:
    each of some folds is left out of a refit with it and of one without.
    """
    sample, count = task.sampler.take(task.sequences), task.sequences
    differences = []
    for part in np.array_split(np.arange(count), min(FOLDS, count)):
        start, stop = int(part[0]), int(part[-1]) + 1
        seen = model.problem(sample.without(start, stop), final.kernel.left.dtype)
        left_out = sample.part(start, stop)
        errors = [
            model.squared_errors(fit(seen, each.kernel, values, rng, LEFT_OUT), left_out)
            for each in (nothing, final)
        ]
        differences.append(errors[0] - errors[1])
    return float(np.sum(np.concatenate(differences))) > 0.0


def _largest(p_q: int, p_k: int, parameters: float) -> int:
    """Largest r with r(p_q + p_k − r) at most ``parameters``."""
    size = min(p_q, p_k)
    return max((r for r in range(size + 1) if r * (p_q + p_k - r) <= parameters), default=0)
