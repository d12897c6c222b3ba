"""Where a fit begins."""

from __future__ import annotations

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.solver.curvature import Curvature
from rankprobe.solver.kernel import Kernel
from rankprobe.solver.linearization import Linearization
from rankprobe.solver.problem import Problem
from rankprobe.solver.value_map import KnownValueMap, ValueMap


def first_kernel(problem: Problem, values: ValueMap, rank: int, rng: np.random.Generator) -> Kernel:
    """A kernel of rank at most ``rank`` to start from.

    Softmax starts at K = 0, uniform attention, in the ``rank`` directions the first gradient likes best.
    A linear mixer with unknown V cannot: at K = 0 the output is zero whatever V is. It starts at the
    identity, every token looking at the tokens like itself.
    """
    xp = array_namespace(problem.outputs)
    like = {"dtype": problem.outputs.dtype, "device": problem.outputs.device}
    rows, columns = int(problem.query.shape[2]), int(problem.key.shape[2])
    if problem.attention.link == "linear" and not isinstance(values, KnownValueMap):
        length = int(problem.outputs.shape[1])
        turn: Array = xp.eye(rows, columns, **like)
        return Kernel.of(turn / length, min(rank, rows, columns))
    size = min(rows, columns)
    nothing = Kernel(xp.eye(rows, size, **like), xp.zeros((size,), **like), xp.eye(columns, size, **like))
    if rank >= size:
        return nothing
    lin = Linearization(problem, nothing.truncated(1), values, 1e-2)
    curvature = Curvature(lin, rng, 32)
    steepest = curvature.scaled(lin.ambient_gradient(), -0.5, 1e-2)
    best = Kernel.of(steepest, rank)
    return Kernel(best.left, 0.0 * best.values, best.right)
