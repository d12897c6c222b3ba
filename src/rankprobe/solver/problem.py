"""The least-squares problem in whitened features: forward map and its two Jacobian products.

‖Y − A(K) B‖², B = (value features) W, where A depends on K through the logits
(query features) K (key features)ᵀ. Nothing here knows where features come from: tokens, tokens with a
constant feature, or one-hot positions (a fixed operator) are the same problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array, Attention

BLOCK_ROWS = 1536
"""Tokens a block, about: blocks are of even size."""


def apply(features: Array, matrix: Array) -> Array:
    """features [n, T, p] times matrix [p, r] as one large product -> [n, T, r]."""
    xp = array_namespace(features)
    n, tokens, width = features.shape
    return xp.reshape(xp.reshape(features, (n * tokens, width)) @ matrix, (n, tokens, matrix.shape[1]))


def contract(features: Array, other: Array) -> Array:
    """Σ over sequences and tokens of features [n, T, p] and other [n, T, r] -> [p, r]."""
    xp = array_namespace(features)
    flat = xp.reshape(features, (-1, features.shape[2]))
    return flat.T @ xp.reshape(other, (-1, other.shape[2]))


def swap(batch: Array) -> Array:
    """Transpose the last two axes of [n, a, b]."""
    return array_namespace(batch).permute_dims(batch, (0, 2, 1))


@dataclass(frozen=True, eq=False)
class Problem:
    """One head's data, ready to fit.

    Parameters
    ----------
    attention : link and mask of the map.
    query, key, value : features, [n, T, p_q], [n, T, p_k], [n, T, p_v]; padded tokens are zero rows. The
        first axis of query and key may be 1 when all sequences share them.
    outputs : Y, [n, T, d_v]; padded rows are zero.
    visible : boolean [n or 1, T, T] from :meth:`Attention.visible`, or None.
    covariates : regressors of Y beside the mixed values, [n, T, c], or None: an intercept where no
        constant token can carry it (a linear mixer's rows do not sum to one).
    padding : [n, T], true at real tokens, or None where all are.
    rows : number of real query tokens in all.
    """

    attention: Attention
    query: Array
    key: Array
    value: Array
    outputs: Array
    visible: Array | None
    covariates: Array | None
    padding: Array | None
    rows: int

    @cached_property
    def blocks(self) -> list[Problem]:
        """The same problem cut into runs of sequences whose work arrays stay in a core's cache.

        The cut depends on the shape alone: sums over blocks come out the same on any number of threads.
        """
        n, length = int(self.outputs.shape[0]), int(self.outputs.shape[1])
        count = min(max(1, round(n * length / BLOCK_ROWS)), n)
        size = -(-n // count)

        def part(array: Array | None, start: int) -> Array | None:
            return array if array is None or array.shape[0] == 1 < n else array[start : start + size, ...]

        return [
            replace(
                self,
                query=part(self.query, start),
                key=part(self.key, start),
                value=part(self.value, start),
                outputs=part(self.outputs, start),
                visible=part(self.visible, start),
                covariates=part(self.covariates, start),
                padding=part(self.padding, start),
            )
            for start in range(0, n, size)
        ]

    @property
    def equations(self) -> int:
        """Number of scalar observations."""
        return self.rows * int(self.outputs.shape[2])

    def regressors(self, A: Array) -> Array:
        """Z, [n, T, p_v + c]: what Y is linear in at one mixer."""
        mixed = A @ self.value
        if self.covariates is None:
            return mixed
        return array_namespace(mixed).concat([mixed, self.covariates], axis=2)

    def values(self, W: Array) -> Array:
        """B = value features mapped by W [p_v + c, d_v] -> [n, T, d_v]; covariates are not mixed."""
        return apply(self.value, W[: self.value.shape[2], :])

    def logits(self, left: Array, right: Array) -> Array:
        """(query left)(key right)ᵀ for left [p_q, r], right [p_k, r] -> [n, T, T]."""
        return apply(self.query, left) @ swap(apply(self.key, right))

    def mixer(self, left: Array, right: Array) -> Array:
        """A at the kernel left rightᵀ, [n or 1, T, T]."""
        return self.attention.mixer(self.logits(left, right), self.visible)

    def push(self, A: Array, logits: Array, B: Array) -> Array:
        """J: δlogits [n, T, T] -> δY [n, T, d_v], with B [n, T, d_v] the mapped values."""
        return self.attention.push(A, logits, self.visible) @ B

    def pull(self, A: Array, B: Array, residual: Array) -> Array:
        """Jᵀ: U [n, T, d_v] -> gradient with respect to the logits [n or 1, T, T]."""
        gradient = self.attention.pull(A, residual @ swap(B), self.visible)
        if A.shape[0] == 1 and gradient.shape[0] > 1:
            return array_namespace(A).sum(gradient, axis=0, keepdims=True)
        return gradient
