"""The map and its Gauss–Newton model at one kernel, block by block."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.solver.kernel import Kernel, Tangent
from rankprobe.solver.parallel import map_blocks
from rankprobe.solver.problem import Problem, apply, contract, swap
from rankprobe.solver.value_map import ValueMap


class Block:
    """Forward values of a few sequences at one kernel."""

    def __init__(self, problem: Problem, kernel: Kernel) -> None:
        xp = array_namespace(problem.outputs)
        self.problem, self.kernel = problem, kernel
        self.query_left = apply(problem.query, kernel.left)
        self.key_right = apply(problem.key, kernel.right)
        logits = (self.query_left * kernel.values) @ swap(self.key_right)
        self.A = problem.attention.mixer(logits, problem.visible)
        self.Z = problem.regressors(self.A)
        exact = xp.astype(self.Z, xp.float64)
        self.gram = contract(exact, exact)
        self.moment = contract(exact, xp.astype(problem.outputs, xp.float64))

    def solved(self, W: Array) -> Array:
        """Set the value map; returns Zᵀ(Y − Z W) in float64."""
        xp = array_namespace(self.A)
        W = xp.astype(W, self.A.dtype)
        self.residual = self.problem.outputs - apply(self.Z, W)
        self.B = self.problem.values(W)
        return xp.astype(contract(self.Z, self.residual), xp.float64)

    def project(self, scaled: Array | None) -> None:
        """Keep the basis of what W explains, and drop what it was made of."""
        xp = array_namespace(self.A)
        self.basis = None if scaled is None else apply(self.Z, xp.astype(scaled, self.A.dtype))
        del self.Z, self.gram, self.moment

    def push(self, step: Tangent) -> Array:
        first = apply(self.problem.query, step.first)
        if step.second is None:
            logits = first @ swap(self.key_right)
        else:
            xp = array_namespace(first)
            second = apply(self.problem.key, step.second)
            queries = xp.concat([first, self.query_left], axis=2)
            logits = queries @ swap(xp.concat([self.key_right, second], axis=2))
        return self.problem.push(self.A, logits, self.B)

    def pull(self, residual: Array) -> tuple[Array, Array | None]:
        H = self.problem.pull(self.A, self.B, residual)
        first = contract(self.problem.query, H @ self.key_right)
        if self.kernel.full:
            return first, None
        return first, contract(self.problem.key, swap(H) @ self.query_left)


class Linearization:
    """Forward values at ``kernel`` and products with J, Jᵀ and JᵀPJ on its tangent space.

    P projects out the value map (Kaufman). ``loss`` is ‖Y − A B‖² plus the ridge penalty.
    """

    def __init__(self, problem: Problem, kernel: Kernel, values: ValueMap, ridge: float) -> None:
        self.problem, self.kernel, self.ridge = problem, kernel, ridge
        self.blocks = map_blocks(lambda part: Block(part, kernel), problem.blocks)
        solution = values.solve(
            reduce(_add, (block.gram for block in self.blocks)),
            reduce(_add, (block.moment for block in self.blocks)),
            ridge,
        )
        missing = map_blocks(lambda block: block.solved(solution.W), self.blocks)
        self.solution = solution.corrected(reduce(_add, missing))
        self.rss = sum(map_blocks(self._finish, self.blocks))
        self.loss = self.rss + self.solution.penalty

    def _finish(self, block: Block) -> float:
        xp = array_namespace(block.A)
        block.solved(self.solution.W)
        block.project(self.solution.scaled)
        return float(xp.sum(block.residual * block.residual, dtype=xp.float64))

    @property
    def W(self) -> Array:
        """The value map in feature coordinates, [p_v + c, d_v]."""
        return self.solution.W

    def gradient(self) -> Tangent:
        """Jᵀ(Y − A B)."""
        return self._pulled(lambda k: self.blocks[k].residual)

    def push(self, step: Tangent) -> list[Array]:
        """J δK, [n, T, d_v], in blocks."""
        return map_blocks(lambda block: block.push(step), self.blocks)

    def pull_projected(self, changes: list[Array]) -> Tangent:
        """JᵀP U for U [n, T, d_v] in blocks."""
        return self._pulled(self._unexplained(changes))

    def normal(self, step: Tangent) -> Tangent:
        """JᵀPJ δK."""
        return self.pull_projected(self.push(step))

    def ambient_gradient(self, changes: list[Array] | None = None) -> Array:
        """JᵀP U over all kernels, [p_q, p_k], U the residual if not given: what more rank would see."""

        def part(k: int) -> Array:
            block = self.blocks[k]
            H = block.problem.pull(block.A, block.B, residual(k))
            return contract(block.problem.query, H @ block.problem.key)

        residual = (lambda k: self.blocks[k].residual) if changes is None else self._unexplained(changes)
        return reduce(_add, map_blocks(part, range(len(self.blocks))))

    def _unexplained(self, changes: list[Array]) -> Callable[[int], Array]:
        """P U by block: U less what a change of the value map explains."""
        if self.solution.scaled is None:
            return lambda k: changes[k]
        numbers = range(len(self.blocks))
        explained = reduce(_add, map_blocks(lambda k: contract(self.blocks[k].basis, changes[k]), numbers))
        return lambda k: changes[k] - apply(self.blocks[k].basis, explained)

    def _pulled(self, residual: Callable[[int], Array]) -> Tangent:
        parts = map_blocks(lambda k: self.blocks[k].pull(residual(k)), range(len(self.blocks)))
        first = reduce(_add, (part[0] for part in parts))
        if self.kernel.full:
            return Tangent(first, None)
        return self.kernel.tangent(first, reduce(_add, (part[1] for part in parts)))


def _add(left: Array, right: Array) -> Array:
    return left + right
