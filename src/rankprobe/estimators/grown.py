"""Kernels grown from rank 0, where there are too few sequences or too much noise to fit them whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.decision.growth import Growth
from rankprobe.decision.noise import evened
from rankprobe.decision.structure import structure
from rankprobe.estimators.inversion import ROOM, WARM, Inversion, Task, decided, held_out, unit_of, values_of
from rankprobe.estimators.model import Model
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
    sample = task.sampler.take(task.sequences)
    xp = array_namespace(sample.X)
    even = None
    for _ in range(2):
        model = (
            model if even is None else replace(model, even=even if model.even is None else model.even @ even)
        )
        values, problem = values_of(task, model), model.problem(sample, xp.float64)
        p_q, p_k = model.query.dimension, model.key.dimension

        def starts(rank: int) -> Iterator[Kernel]:
            yield over.kernel.truncated(rank)  # noqa: B023
            left, right = (
                xp.asarray(np.linalg.qr(rng.standard_normal((width, rank)))[0], device=sample.X.device)
                for width in (p_q, p_k)  # noqa: B023
            )
            yield Kernel(left, xp.ones_like(left[0, :]) / sample.X.shape[1], right)

        free = sample.attention_freedom(task.causal, int(sample.Y.shape[2]))
        spare = problem.equations / ROOM - model.value.dimension * int(sample.Y.shape[2])
        most = min(_largest(p_q, p_k, min(spare, free / ROOM)), task.max_rank or math.inf)
        # More rank than needed smooths the way: the fit, cut, is one more start.
        over = fit(problem, first_kernel(problem, values, max(int(most), 1), rng), values, rng, GROWING)
        nothing = fit(problem, first_kernel(problem, values, 1, rng).truncated(0), values, rng, GROWING)
        growth = Growth(
            nothing,
            lambda start: fit(problem, start, values, rng, GROWING, task.report),  # noqa: B023
            lambda start: fit(problem, start, values, rng, CLOSING, task.report),  # noqa: B023
            starts,
            int(most),
            rng,
        )
        verdict = growth.decide()
        final, tested = growth.fits[verdict.rank], structure(growth.fits[verdict.rank])
        even = evened(final) if final.converged and not tested.found else None
        if even is None:
            break
    verdict = replace(verdict, starts=growth.agreeing(verdict.rank))
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
        predicts=verdict.rank > 0 and _kernel_predicts(task, model, final, nothing, values, rng),
    )


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
