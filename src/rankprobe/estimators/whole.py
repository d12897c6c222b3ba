"""Kernels fitted whole: a noise edge decides the rank on few sequences, a refit on more confirms it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.decision.edge import NoiseEdge
from rankprobe.decision.noise import evened, gaussian, noise_alike, signal_score
from rankprobe.decision.score import score_for_more
from rankprobe.decision.structure import structure
from rankprobe.decision.verdict import Verdict
from rankprobe.estimators.inversion import (
    WARM,
    Inversion,
    Task,
    decided,
    energy_error,
    held_out,
    unit_of,
    values_of,
)
from rankprobe.estimators.model import Model
from rankprobe.estimators.rounding import rounding_of
from rankprobe.solver import Fit, Problem, Settings, ValueMap, fit
from rankprobe.solver.start import first_kernel

ENERGY_TARGET = 0.005
"""The sample grows until the standard error of the energy rank is below this, or the data end."""


CONFIRM = 3
"""A rank is confirmed on this many times the sequences that decided it, where there are as many."""

CONFIRMED = 3.0
"""Standard score of what the residual of the confirming fit may still ask for."""

EVENINGS = 5
"""Most times that the noise of the outputs is evened before a decision."""

NOTHING = 4.0
"""Standard score of what the inputs explain of the outputs below which it is nothing."""

SINGLE = 1e-6
"""Share of the squares of Y above which what a fit leaves is far from the rounding of single precision."""

PATIENCE = 4
"""Growth of the sample after which a fit that does not settle is asked whether it leaves noise at all."""

COLD = Settings(ridge_fall=100.0, tight=True)
"""A first fit."""

NEAR = replace(WARM, tight=True)
"""A fit of the whole kernel that starts next to its answer."""


def invert_whole(task: Task, model: Model, first: int) -> Inversion | None:
    """The full kernel and its noise edge decide the rank; a refit at that rank, on more, confirms it.

    None where the outputs of the first sample are noise to a fit of rank 0: it tells so, a whole kernel
    only fits the noise.
    """
    rng = np.random.default_rng(task.sampler.seed)
    values = values_of(task, model)
    count, start, evenings = min(task.sequences, first), None, 0
    settings = COLD
    xp = array_namespace(model.value.whiten)
    dtype = xp.float32
    while True:
        problem = model.problem(task.sampler.take(count), dtype)
        whole = fit(
            problem,
            start or first_kernel(problem, values, model.key.dimension, rng),
            values,
            rng,
            settings,
            task.report,
        )
        if not whole.converged and count <= first and _nothing_shows(problem, values, rng):
            return None
        if dtype == xp.float32 and whole.rss < SINGLE * _squares(problem):
            dtype = xp.float64
            start, settings = whole.kernel.astype(dtype), NEAR
            continue
        even = evened(whole) if whole.converged and evenings < EVENINGS else None
        if even is not None:
            # What noise in other columns hid shows only now, so the noise is looked at again.
            evenings += 1
            model = model.evened(even)
            values, start, settings = values_of(task, model), whole.kernel, NEAR
            continue
        rounding = rounding_of(model, task.sampler.take(count), task.sampler.source.storage_dtype)
        edge = NoiseEdge(whole, rng, rounding or gaussian)
        verdict = edge.decide()
        start, settings = whole.kernel, NEAR
        open_ = not (verdict.settled and whole.converged)
        if task.max_rank is not None and verdict.rank > task.max_rank:
            verdict = Verdict(
                task.max_rank, edge.spectrum.rank, f"{verdict.reason}; looked no further than {task.max_rank}"
            )
        # What attention of this kind cannot fit, it does not fit on more sequences either.
        if open_ and count < task.sequences and not (count >= PATIENCE * first and structure(whole).found):
            count = min(task.sequences, 2 * count)
            if not whole.converged:
                # A fit lost on few sequences leads the next astray.
                start, settings = None, COLD
            continue
        size = count
        if not open_:
            size = min(task.sequences, _confirming(model, whole, verdict.rank, count))
        problem = problem if size == count else model.problem(task.sampler.take(size), dtype)
        final = fit(problem, whole.kernel.truncated(verdict.rank), values, rng, WARM, task.report)
        if rounding is not None:
            rounding = replace(rounding, sample=task.sampler.take(size))
        more = score_for_more(final, rng, rounding or noise_alike)
        if more <= CONFIRMED or size == count:
            break
        count = size
    if more > CONFIRMED and verdict.settled:
        verdict = replace(
            verdict,
            upper=edge.spectrum.rank,
            reason=f"{verdict.reason}; yet the residual asks for more, by {more:.1f} standard deviations",
        )
    limit = edge.printed(verdict.rank, model.matrix_in_tokens) * unit_of(task, model, final.lin.W)
    # Rank not counted yet shows in what a smaller rank leaves: whether that is noise, the whole kernel tells.
    tested = structure(final if verdict.settled else whole)
    heldout = held_out(task, model, final, values, size, rng)
    # Short of rank by order, a fit may wander; what is claimed rests on the whole kernel.
    short = verdict.rank == task.max_rank and not verdict.settled
    converged = whole.converged and (final.converged or short)
    return decided(
        task, model, final, verdict, "full", limit, heldout, size, converged, tested, rounding=rounding
    )


def _nothing_shows(problem: Problem, values: ValueMap, rng: np.random.Generator) -> bool:
    """Whether uniform attention explains nothing of Y, and its gradient asks for no kernel."""
    if problem.attention.link != "softmax":
        return False
    uniform = fit(problem, first_kernel(problem, values, 1, rng).truncated(0), values, rng, WARM)
    return signal_score(uniform) < NOTHING and score_for_more(uniform, rng) <= CONFIRMED


def _squares(problem: Problem) -> float:
    xp = array_namespace(problem.outputs)
    return float(xp.sum(problem.outputs * problem.outputs, dtype=xp.float64))


def _confirming(model: Model, whole: Fit, rank: int, count: int) -> int:
    """Sequences for the refit that confirms a rank found on ``count`` and gives its spectrum."""
    if rank == 0:
        return 16 * CONFIRM * count
    error = energy_error(model, whole, rank)
    return math.ceil(count * min(max(CONFIRM, (error / ENERGY_TARGET) ** 2), 16.0))
