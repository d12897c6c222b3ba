"""The value map inside the fit: projected out exactly (variable projection), or known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from array_api_compat import array_namespace

from rankprobe.attention import Array
from rankprobe.solver.problem import apply, contract


class Projection(Protocol):
    """What a value map gives at one mixer: W [p_v, d_v], its penalty, and the projector of δY."""

    @property
    def W(self) -> Array: ...
    @property
    def penalty(self) -> float: ...
    def residual_of(self, change: Array) -> Array:
        """δY with the part a change of W would absorb taken out (Kaufman's approximation)."""
        ...


class ValueMap(Protocol):
    def at(self, Z: Array, outputs: Array, ridge: float) -> Projection:
        """Solve for the value map given Z = A · features [n, T, p_v]."""
        ...


@dataclass(frozen=True)
class _Known:
    W: Array
    penalty: float = 0.0

    def residual_of(self, change: Array) -> Array:
        return change


@dataclass(frozen=True)
class KnownValueMap:
    """W is given; only the kernel is fitted."""

    W: Array

    def at(self, Z: Array, outputs: Array, ridge: float) -> Projection:
        return _Known(self.W)


@dataclass(frozen=True)
class _Fitted:
    W: Array
    penalty: float
    basis: Array
    """Z E (Λ + ρ)^{-1/2}, [n, T, p_v]: the ridge projector is I − basis basisᵀ."""

    def residual_of(self, change: Array) -> Array:
        return change - apply(self.basis, contract(self.basis, change))


class FittedValueMap:
    """W minimises ‖Y − Z W‖² + ρ‖W‖², ρ = ridge · mean eigenvalue of ZᵀZ.

    The Gram of Z is accumulated and decomposed in float64 whatever the features are in: attention that
    looks mostly at one token leaves V badly conditioned, and a Gram in float32 would cut directions that
    carry the answer. One correction on the residual restores what a Gram loses.
    """

    def at(self, Z: Array, outputs: Array, ridge: float) -> Projection:
        xp = array_namespace(Z)
        exact = xp.astype(Z, xp.float64)
        gram, vectors = xp.linalg.eigh(contract(exact, exact))
        gram = xp.clip(gram, 0.0, None)
        rho = ridge * float(xp.mean(gram))
        unseen = float(gram[-1]) * 10 * gram.shape[0] * float(xp.finfo(gram.dtype).eps) + 1e-300
        inverse_root = xp.where(gram + rho > unseen, 1.0 / xp.sqrt(gram + rho + unseen), 0.0 * gram)
        scaled = vectors * inverse_root
        basis = apply(Z, xp.astype(scaled, Z.dtype))
        W = scaled @ xp.astype(contract(basis, outputs), xp.float64)
        missing = xp.astype(contract(Z, outputs - apply(Z, xp.astype(W, Z.dtype))), xp.float64) - rho * W
        W = xp.astype(W + scaled @ (scaled.T @ missing), Z.dtype)
        return _Fitted(W, rho * float(xp.sum(W * W)), basis)
