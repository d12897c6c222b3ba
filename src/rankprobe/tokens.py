"""Token moments, whitening, and the quotient: which directions of a kernel the data can see.

Softmax ignores a constant added to a row of logits, and no map sees a direction in which tokens never
move. The kernel therefore lives on range(C_q) × range(C_k): C_q the second moment of query tokens, C_k
the mean covariance of the keys a row can see (softmax) or the second moment of keys (linear). Everything
that compares, prints or counts singular values uses the bases of this file.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array, Attention
from rankprobe.solver.problem import apply, contract


@dataclass(frozen=True)
class Whitening:
    """Coordinates in which a second moment C is the identity on its range.

    whiten [d, p]: features = tokens @ whiten have unit second moment. basis [d, p]: orthonormal, spans
    range(C). printed [d', p']: orthonormal, spans the directions in which the first d' features vary; a
    kernel is reported there. It is ``basis`` unless the last feature is a constant: then what all tokens
    share belongs to the biases, whose units are not the kernel's.
    """

    whiten: Array
    basis: Array
    printed: Array

    @classmethod
    def of(cls, moment: Array, tolerance: float) -> Whitening:
        """From C [d, d]; directions whose share of the variance is below ``tolerance`` count as unseen.

        Features are first scaled to unit variance, so units of single features do not decide the range.
        """
        xp = array_namespace(moment)
        spread = xp.sqrt(xp.clip(xp.linalg.diagonal(moment), 0.0, None))
        scale = xp.where(spread > 0, spread, xp.ones_like(spread))
        eigenvalues, vectors = xp.linalg.eigh(moment / scale[:, None] / scale[None, :])
        keep = int(xp.sum(xp.astype(eigenvalues > tolerance * max(float(eigenvalues[-1]), 1e-300), xp.int64)))
        first = int(moment.shape[0]) - keep
        vectors, eigenvalues = vectors[:, first:], eigenvalues[first:]
        whiten = vectors / scale[:, None] / xp.sqrt(eigenvalues)
        basis = xp.linalg.qr(vectors * scale[:, None])[0] if keep else vectors
        return cls(whiten, basis, basis)

    def without_constant(self, covariance: Array, tolerance: float) -> Whitening:
        """The same features, reported on range(covariance) [d − 1, d − 1] of the tokens proper."""
        return Whitening(self.whiten, self.basis, Whitening.of(covariance, tolerance).basis)

    @classmethod
    def identity(cls, like: Array, size: int) -> Whitening:
        """One-hot positions as features: each appears in one row of T, so its second moment is 1/T."""
        xp = array_namespace(like)
        eye = xp.eye(size, dtype=like.dtype, device=like.device)
        return cls(eye * size**0.5, eye, eye)

    @property
    def dimension(self) -> int:
        """Visible dimensions p."""
        return int(self.whiten.shape[1])

    def dual(self) -> Array:
        """T [d, p] with tokens = T features on range(C): the inverse of ``whiten`` there."""
        xp = array_namespace(self.whiten)
        return xp.linalg.solve(self.basis.T @ self.whiten, self.basis.T).T

    def to_tokens(self, coefficients: Array) -> Array:
        """Coefficients [p, r] of whitened features -> the same linear form on tokens, [d', r]."""
        rows = (self.whiten @ coefficients)[: self.printed.shape[0], :]
        return self.printed @ (self.printed.T @ rows)


def with_constant(X: Array, mask: Array | None) -> Array:
    """Tokens with a feature that is one at every real token: it carries the q, k, v and output biases."""
    xp = array_namespace(X)
    one = xp.ones((*X.shape[:2], 1), dtype=X.dtype, device=X.device)
    if mask is not None:
        one = xp.where(mask[:, :, None], one, xp.zeros_like(one))
    return xp.concat([X, one], axis=2)


def centred_keys(X: Array, mask: Array | None) -> Array:
    """Keys less their mean over the sequence: a softmax row does not see the difference."""
    xp = array_namespace(X)
    if mask is None:
        return X - xp.mean(X, axis=1, keepdims=True)
    real = xp.astype(mask, X.dtype)[:, :, None]
    count = xp.clip(xp.sum(real, axis=1, keepdims=True), 1.0, None)
    return (X - xp.sum(X * real, axis=1, keepdims=True) / count) * real


def covariance(X: Array, rows: int) -> Array:
    """Covariance of all real tokens of X [n, T, d] about their common mean; padded tokens are zero rows."""
    xp = array_namespace(X)
    mean = xp.sum(X, axis=(0, 1)) / max(rows, 1)
    return second_moment(X, rows) - mean[:, None] * mean[None, :]


def second_moment(X: Array, rows: int) -> Array:
    """Σ x xᵀ / rows over sequences and real tokens of X [n, T, d]."""
    return contract(X, X) / max(rows, 1)


def visible_covariance(X: Array, attention: Attention, visible: Array | None, rows: int) -> Array:
    """Mean over query rows of the covariance of the keys each row sees, [d, d] (uniform weights)."""
    xp = array_namespace(X)
    if visible is None:
        return second_moment(centred_keys(X, None), rows)
    weights = xp.astype(visible, X.dtype)
    seen = xp.clip(xp.sum(weights, axis=2, keepdims=True), 1.0, None)
    weights = xp.broadcast_to(weights / seen, (X.shape[0], X.shape[1], X.shape[1]))
    means = weights @ X
    per_key = xp.sum(weights, axis=1)[:, :, None]
    return (contract(X * per_key, X) - contract(means, means)) / max(rows, 1)


def whitened(X: Array, whitening: Whitening) -> Array:
    """Features [n, T, p] of tokens [n, T, d]."""
    return apply(X, whitening.whiten)
