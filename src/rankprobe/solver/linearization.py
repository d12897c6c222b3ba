"""The map and its Gauss–Newton model at one kernel."""

from __future__ import annotations

from array_api_compat import array_namespace

from rankprobe.attention import Array
from rankprobe.solver.kernel import Kernel, Tangent
from rankprobe.solver.problem import Problem, apply, contract, swap
from rankprobe.solver.value_map import ValueMap


class Linearization:
    """Forward values at ``kernel`` and products with J, Jᵀ and JᵀPJ on its tangent space.

    P projects out the value map (Kaufman). ``loss`` is ‖Y − A B‖² plus the ridge penalty.
    """

    def __init__(self, problem: Problem, kernel: Kernel, values: ValueMap, ridge: float) -> None:
        xp = array_namespace(problem.outputs)
        self.problem, self.kernel, self.ridge = problem, kernel, ridge
        self.query_left = apply(problem.query, kernel.left)
        self.key_right = apply(problem.key, kernel.right)
        self.A = problem.attention.mixer(
            (self.query_left * kernel.values) @ swap(self.key_right), problem.visible
        )
        Z = problem.regressors(self.A)
        self.projection = values.at(Z, problem.outputs, ridge)
        self.residual = problem.outputs - apply(Z, self.projection.W)
        self.B = problem.values(self.projection.W)
        self.rss = float(xp.sum(self.residual * self.residual))
        self.loss = self.rss + self.projection.penalty

    def push(self, step: Tangent) -> Array:
        """J δK, [n, T, d_v]."""
        xp = array_namespace(self.A)
        first = apply(self.problem.query, step.first)
        if step.second is None:
            logits = first @ swap(self.key_right)
        else:
            second = apply(self.problem.key, step.second)
            logits = xp.concat([first, self.query_left], axis=2) @ swap(
                xp.concat([self.key_right, second], axis=2)
            )
        return self.problem.push(self.A, logits, self.B)

    def pull(self, residual: Array) -> Tangent:
        """Jᵀ U on the tangent space."""
        H = self.problem.pull(self.A, self.B, residual)
        first = contract(self.problem.query, H @ self.key_right)
        if self.kernel.full:
            return Tangent(first, None)
        return self.kernel.tangent(first, contract(self.problem.key, swap(H) @ self.query_left))

    def normal(self, step: Tangent) -> Tangent:
        """JᵀPJ δK."""
        return self.pull(self.projection.residual_of(self.push(step)))

    def ambient_gradient(self, residual: Array) -> Array:
        """Jᵀ U over all kernels, [p_q, p_k]: what more rank would see."""
        H = self.problem.pull(self.A, self.B, residual)
        return contract(self.problem.query, H @ self.problem.key)
