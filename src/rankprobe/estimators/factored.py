"""Kernels of wide tokens in factored form: an over-parameterized fit, then refits at smaller ranks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.decision.ladder import Ladder
from rankprobe.decision.score import unevenness
from rankprobe.decision.structure import Structure, structure
from rankprobe.estimators.inversion import (
    EQUATIONS_PER_PARAMETER,
    WARM,
    Inversion,
    Refusal,
    Task,
    decided,
    too_few,
    values_of,
)
from rankprobe.estimators.model import Model
from rankprobe.estimators.rounding import rounding_of
from rankprobe.solver import Fit, Settings, fit
from rankprobe.solver.start import first_kernel


def invert_factored(task: Task, model: Model, rows: float) -> Inversion | Refusal:
    """K of bounded rank where the full kernel has too many unknowns: over-parameterize, then refit down."""
    source = task.sampler.source
    rng = np.random.default_rng(task.sampler.seed)
    values = values_of(task, model)
    p_q, p_k = model.query.dimension, model.key.dimension
    # A trained head is as wide as its output; a quarter more leaves room to see that it is not wider.
    top = min(p_q, p_k, task.max_rank or max(16, math.ceil(1.25 * source.value_dim)))
    unknowns = top * (p_q + p_k - top) + model.value.dimension * source.value_dim
    heldout = max(1, min(task.sequences // 16, 256))
    wanted = math.ceil(EQUATIONS_PER_PARAMETER * unknowns / (rows * source.value_dim))
    count = min(task.sequences - heldout, wanted)
    if count * rows * source.value_dim < 2 * unknowns:
        need = math.ceil(2 * unknowns / (rows * source.value_dim)) + heldout
        return too_few(task.sequences, unknowns, need, wanted + heldout)
    sample = task.sampler.take(count + heldout)
    xp = array_namespace(sample.X)
    problem = model.problem(sample.part(0, count), xp.float32)
    over = fit(
        problem,
        first_kernel(problem, values, top, rng),
        values,
        rng,
        Settings(outer=40, floor=3e-6, stall=0.02),
        task.report,
    )
    # Next to the answer the model of a step is right, and one long solve gains more than several short ones.
    settings = replace(WARM, outer=12, inner=400, floor=3e-10, stall=0.05)
    rounding = rounding_of(model, sample.part(0, count), source.storage_dtype)

    def uneven(at: Fit) -> float:
        return 1.0 if rounding is None else unevenness(at, rng, rounding)

    ladder = Ladder(over, lambda start: fit(problem, start, values, rng, settings, task.report), uneven)
    verdict = ladder.decide()
    final = ladder.fits.get(verdict.rank, over)
    held = sample.part(count, count + heldout)
    # Short of rank by order, a fit leaves structure that says nothing of the kind of map.
    short = verdict.rank == top == task.max_rank
    tested = Structure({}, 0) if short else structure(final if verdict.settled else over)
    return decided(
        task,
        model,
        final,
        verdict,
        "factored",
        None,
        (final, held),
        count,
        final.converged,
        tested,
        rounding=rounding,
    )
