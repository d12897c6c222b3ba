"""The value map inside the fit: projected out exactly (variable projection), or known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array


@dataclass(frozen=True, eq=False)
class Solution:
    """W [p_v + c, d_v], and what projects a change of Y onto the changes a change of W can make.

    scaled : E (Λ + ρ)^{-1/2} with ZᵀZ = E Λ Eᵀ, or None where W is known; the ridge projector is
        Z scaled (Z scaled)ᵀ. rho : the penalty's weight ρ.
    """

    W: Array
    scaled: Array | None
    rho: float

    @property
    def penalty(self) -> float:
        """ρ‖W‖²."""
        return self.rho * float(array_namespace(self.W).sum(self.W * self.W)) if self.rho else 0.0

    def corrected(self, missing: Array) -> Solution:
        """One refinement by Zᵀ(Y − Z W): restores the accuracy that solving with a Gram loses."""
        if self.scaled is None:
            return self
        # ρ W is in the span of ``scaled`` wherever ρ is not zero.
        change = self.scaled @ (self.scaled.T @ (missing - self.rho * self.W))
        return Solution(self.W + change, self.scaled, self.rho)


class ValueMap(Protocol):
    def solve(self, gram: Array, moment: Array, ridge: float) -> Solution:
        """The value map given ZᵀZ and ZᵀY, both float64."""
        ...


@dataclass(frozen=True, eq=False)
class KnownValueMap:
    """W is given but for its biases: only those and the kernel are fitted.

    free : columns [p_v + c, k] whose multiples may be added to W (the constant token, the intercept), or
        None where W is known to the last entry.
    """

    W: Array
    free: Array | None = None

    def solve(self, gram: Array, moment: Array, ridge: float) -> Solution:
        if self.free is None:
            return Solution(self.W, None, 0.0)
        reduced = FittedValueMap().solve(
            self.free.T @ gram @ self.free, self.free.T @ (moment - gram @ self.W), 0.0
        )
        return Solution(self.W + self.free @ reduced.W, self.free @ reduced.scaled, 0.0)


class FittedValueMap:
    """W minimises ‖Y − Z W‖² + ρ‖W‖², ρ = ridge · mean eigenvalue of ZᵀZ.

    The Gram is accumulated and decomposed in float64 whatever the features are in: attention that looks
    mostly at one token leaves V badly conditioned, and a float32 Gram would cut directions that matter.
    """

    def solve(self, gram: Array, moment: Array, ridge: float) -> Solution:
        xp = array_namespace(gram)
        eigenvalues, vectors = xp.linalg.eigh(gram)
        eigenvalues = xp.clip(eigenvalues, 0.0, None)
        rho = ridge * float(xp.mean(eigenvalues))
        rounding = 10 * int(gram.shape[0]) * float(xp.finfo(gram.dtype).eps)
        unseen = float(eigenvalues[-1]) * rounding + 1e-300
        root = xp.sqrt(eigenvalues + rho + unseen)
        scaled = vectors * xp.where(eigenvalues + rho > unseen, 1.0 / root, 0.0 * root)
        return Solution(scaled @ (scaled.T @ moment), scaled, rho)
