"""Kernels of rank at most r as points of the fixed-rank manifold, K = U diag(s) Vᵀ.

A change of K is a tangent vector δK = M₁ Vᵀ + U M₂ᵀ with M₂ ⟂ V, so that ‖δK‖² = ‖M₁‖² + ‖M₂‖²: damping
and preconditioning act on K itself, and small singular values do not spoil the conditioning as they do
for factors P Qᵀ. At r = p_k the tangent space is all of R^{p_q × p_k} (M₂ = 0): the full kernel is not a
special case.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array


@dataclass(frozen=True, eq=False)
class Kernel:
    """left [p_q, r] and right [p_k, r] orthonormal, values [r] in decreasing order."""

    left: Array
    values: Array
    right: Array

    @classmethod
    def of(cls, matrix: Array, rank: int) -> Kernel:
        """Best rank-``rank`` approximation of a matrix [p_q, p_k]."""
        xp = array_namespace(matrix)
        left, values, right = xp.linalg.svd(matrix, full_matrices=False)
        return cls(left[:, :rank], values[:rank], right[:rank, :].T)

    @property
    def rank(self) -> int:
        return int(self.values.shape[0])

    @property
    def full(self) -> bool:
        """Whether the tangent space holds every matrix through M₁ alone."""
        return self.rank == int(self.right.shape[0])

    def matrix(self) -> Array:
        """K, [p_q, p_k]."""
        return (self.left * self.values) @ self.right.T

    def truncated(self, rank: int) -> Kernel:
        """The leading ``rank`` singular triples."""
        return Kernel(self.left[:, :rank], self.values[:rank], self.right[:, :rank])

    def astype(self, dtype: Array) -> Kernel:
        """The same kernel in another precision."""
        xp = array_namespace(self.left)
        return Kernel(*(xp.astype(part, dtype) for part in (self.left, self.values, self.right)))

    def tangent(self, first: Array, second: Array) -> Tangent:
        """Tangent vector with M₁ = ``first`` and the part of ``second`` orthogonal to V as M₂."""
        if self.full:
            return Tangent(first, None)
        return Tangent(first, second - self.right @ (self.right.T @ second))

    def moved(self, step: Tangent) -> Kernel:
        """Retraction: the best rank-r approximation of K + δK."""
        xp = array_namespace(self.left)
        left = self.left * self.values + step.first
        if step.second is None:
            return Kernel.of(left @ self.right.T, self.rank)
        outer, outer_r = xp.linalg.qr(xp.concat([left, self.left], axis=1))
        inner, inner_r = xp.linalg.qr(xp.concat([self.right, step.second], axis=1))
        core = Kernel.of(outer_r @ inner_r.T, self.rank)
        return Kernel(outer @ core.left, core.values, inner @ core.right)


@dataclass(frozen=True, eq=False)
class Tangent:
    """first M₁ [p_q, r]; second M₂ [p_k, r], or None where the kernel is full."""

    first: Array
    second: Array | None

    def dot(self, other: Tangent) -> float:
        xp = array_namespace(self.first)
        total = xp.sum(self.first * other.first)
        if self.second is not None:
            total = total + xp.sum(self.second * other.second)
        return float(total)

    def plus(self, scale: float, other: Tangent) -> Tangent:
        """self + scale · other."""
        second = None
        if self.second is not None and other.second is not None:
            second = self.second + scale * other.second
        return Tangent(self.first + scale * other.first, second)

    def times(self, scale: float) -> Tangent:
        return Tangent(self.first * scale, None if self.second is None else self.second * scale)
