"""Preconditioned conjugate gradients on tangent vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankprobe.solver.kernel import Tangent


@dataclass(frozen=True, eq=False)
class Solution:
    """x with product(x) ≈ right side, what is left of the right side, and the products it took."""

    x: Tangent
    residual: Tangent
    iterations: int


def conjugate_gradients(
    product: Callable[[Tangent], Tangent],
    precondition: Callable[[Tangent], Tangent],
    right_side: Tangent,
    tolerance: float,
    iterations: int,
) -> Solution:
    """Solve product(x) = right_side for a symmetric positive (semi)definite product.

    Stops when the preconditioned residual norm has fallen by ``tolerance``, or after ``iterations``.
    """
    x = right_side.times(0.0)
    residual = right_side
    z = precondition(residual)
    direction = z
    rho = first = residual.dot(z)
    for k in range(iterations):
        if rho <= tolerance**2 * first or rho <= 0.0:
            return Solution(x, residual, k)
        image = product(direction)
        curvature = direction.dot(image)
        if curvature <= 0.0:
            return Solution(x, residual, k)
        x = x.plus(rho / curvature, direction)
        residual = residual.plus(-rho / curvature, image)
        z = precondition(residual)
        rho, previous = residual.dot(z), rho
        direction = z.plus(rho / previous, direction)
    return Solution(x, residual, iterations)
