"""From tokens to a least-squares problem: features, the quotient, and the way back to token units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array, Attention
from rankprobe.decision.excess import Floats
from rankprobe.solver import Fit, Kernel, Problem
from rankprobe.solver.problem import apply
from rankprobe.tokens import (
    Whitening,
    centred_keys,
    covariance,
    second_moment,
    visible_covariance,
    whitened,
    with_constant,
)

Kind = Literal["softmax", "linear", "fixed_operator"]

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff of storage types coarse enough to give unseen directions a visible variance."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Sequences in memory: X [n, T, d], Y [n, T, d_v], mask [n, T] (true = real token) or None."""

    X: Array
    Y: Array
    mask: Array | None = None

    @property
    def sequences(self) -> int:
        return int(self.X.shape[0])

    @property
    def rows(self) -> int:
        """Real tokens in all."""
        if self.mask is None:
            return self.sequences * int(self.X.shape[1])
        xp = array_namespace(self.X)
        return int(xp.sum(xp.astype(self.mask, xp.int64)))

    def part(self, start: int, stop: int) -> Sample:
        """Sequences start … stop − 1."""
        return Sample(
            self.X[start:stop, ...],
            self.Y[start:stop, ...],
            None if self.mask is None else self.mask[start:stop, ...],
        )

    def without(self, start: int, stop: int) -> Sample:
        """All sequences but start … stop − 1."""
        xp = array_namespace(self.X)
        first, last = self.part(0, start), self.part(stop, self.sequences)
        mask = None if first.mask is None else xp.concat([first.mask, last.mask], axis=0)
        return Sample(xp.concat([first.X, last.X], axis=0), xp.concat([first.Y, last.Y], axis=0), mask)

    def distinct(self) -> int:
        """Number of sequences that differ from each other in X or Y."""
        xp = array_namespace(self.X)
        both = np.asarray(xp.concat([self.X, self.Y], axis=2))
        return len({sequence.tobytes() for sequence in both})

    def size(self) -> float:
        """Σ ‖y‖² over real tokens."""
        return float(array_namespace(self.Y).sum(self.Y * self.Y))

    def attention_freedom(self, causal: bool, width: int) -> int:
        """Most numbers about the mixer that Y [.., ``width``] can tell: Σ over queries min(keys − 1, d_v).

        A row of attention over m keys has m − 1 free entries, and is seen through d_v outputs.
        """
        xp = array_namespace(self.X)
        n, length = self.sequences, int(self.X.shape[1])
        mask = xp.ones((n, length), dtype=xp.bool, device=self.X.device) if self.mask is None else self.mask
        real = xp.astype(mask, xp.int64)
        keys = xp.cumulative_sum(real, axis=1) if causal else xp.sum(real, axis=1, keepdims=True) + 0 * real
        return int(xp.sum(xp.clip(keys - 1, 0, width) * real))

    def variation(self) -> float:
        """Σ ‖y − mean y‖² over real tokens."""
        xp = array_namespace(self.Y)
        real = self.Y if self.mask is None else self.Y[self.mask, :][None, ...]
        centred = real - xp.mean(real, axis=(0, 1), keepdims=True)
        return float(xp.sum(centred * centred))


@dataclass(frozen=True, eq=False)
class Model:
    """A kind of attention with the token coordinates of one data set.

    Parameters
    ----------
    kind : ``softmax`` or ``linear`` attention, or ``fixed_operator``: Y = A X V with one A [T, T] for all
        sequences, which is linear attention whose queries and keys are one-hot positions.
    attention : link and mask.
    bias : a constant feature carries the biases of queries, keys, values and outputs.
    query, key, value : whitened coordinates of the three roles.
    residual : Y also holds a linear map of the token itself, such as a skip connection.
    even : [d_v, d_v], applied to Y so that noise is alike in its columns, or None.
    """

    kind: Kind
    attention: Attention
    bias: bool
    query: Whitening
    key: Whitening
    value: Whitening
    residual: bool = False
    even: Array | None = None

    @classmethod
    def of(
        cls,
        kind: Kind,
        causal: bool,
        bias: bool,
        sample: Sample,
        storage: str = "float64",
        residual: bool = False,
    ) -> Model:
        """Coordinates from the moments of ``sample``; ``storage`` sets which directions are rounding."""
        attention = Attention("softmax" if kind == "softmax" else "linear", causal)
        tolerance = max(1e-12, 10 * ROUNDING.get(storage, 0.0) ** 2)
        tokens = with_constant(sample.X, sample.mask) if bias else sample.X
        value = Whitening.of(second_moment(tokens, sample.rows), tolerance)
        if bias:
            value = value.without_constant(covariance(sample.X, sample.rows), tolerance)
        if kind == "fixed_operator":
            position = Whitening.identity(sample.X, int(sample.X.shape[1]))
            return cls(kind, attention, bias, position, position, value, residual)
        if kind == "linear":
            return cls(kind, attention, bias, value, value, value, residual)
        visible = attention.visible(sample.X, int(sample.X.shape[1]), sample.mask)
        spread = visible_covariance(centred_keys(sample.X, sample.mask), attention, visible, sample.rows)
        return cls(kind, attention, bias, value, Whitening.of(spread, tolerance), value, residual)

    def problem(self, sample: Sample, dtype: Array = None) -> Problem:
        """The least-squares problem of ``sample`` in these coordinates."""
        xp = array_namespace(sample.X)
        dtype = dtype or sample.X.dtype
        n, length = int(sample.X.shape[0]), int(sample.X.shape[1])
        tokens = with_constant(sample.X, sample.mask) if self.bias else sample.X
        value = xp.astype(whitened(tokens, self.value), dtype)
        covariates = None
        if self.kind == "fixed_operator":
            query = key = xp.astype(self.query.whiten[None, ...], dtype)
        elif self.kind == "linear":
            query = key = value
        else:
            query, key = value, xp.astype(whitened(centred_keys(sample.X, sample.mask), self.key), dtype)
        if self.residual:
            # With biases the constant token is among the features: an intercept would repeat it.
            covariates = value
        elif self.bias and self.kind != "softmax":
            one = xp.ones((n, length, 1), dtype=dtype, device=sample.X.device)
            covariates = one if sample.mask is None else xp.where(sample.mask[:, :, None], one, 0.0 * one)
        visible = self.attention.visible(sample.X, length, sample.mask)
        outputs = xp.astype(sample.Y if self.even is None else apply(sample.Y, self.even), dtype)
        return Problem(
            self.attention, query, key, value, outputs, visible, covariates, sample.mask, sample.rows
        )

    def squared_errors(self, fitted: Fit, sample: Sample) -> Floats:
        """‖Y − A X V‖² of a fit on each of other sequences, [n], in the columns of Y as they are."""
        xp = array_namespace(sample.Y)
        kernel, W = fitted.kernel, xp.astype(fitted.lin.W, fitted.kernel.left.dtype)
        problem = self.problem(sample, kernel.left.dtype)
        Z = problem.regressors(problem.mixer(kernel.left * kernel.values, kernel.right))
        rest = xp.astype(problem.outputs - apply(Z, W), xp.float64)
        if self.even is not None:
            rest = apply(rest, xp.linalg.inv(self.even))
        return np.asarray(xp.sum(rest * rest, axis=(1, 2)), dtype=np.float64)

    def in_tokens(self, kernel: Kernel) -> Kernel:
        """The kernel of the quotient, P_q K P_k, in token units (its singular values are those printed)."""
        xp = array_namespace(kernel.left)
        left = self.query.to_tokens(xp.astype(kernel.left, self.query.whiten.dtype))
        right = self.key.to_tokens(xp.astype(kernel.right, self.key.whiten.dtype))
        return product_svd(left * xp.astype(kernel.values, left.dtype), right)

    def evened(self, even: Array) -> Model:
        """The model with the columns of Y turned once more, by ``even`` [d_v, d_v]."""
        return replace(self, even=even if self.even is None else self.even @ even)

    def matrix_in_tokens(self, matrix: Array) -> Array:
        """A kernel [p_q, p_k] as a matrix in token units, [d, d]."""
        return self.query.to_tokens(self.key.to_tokens(matrix.T).T)


def product_svd(left: Array, right: Array) -> Kernel:
    """Singular triples of left rightᵀ for left [a, r], right [b, r], without forming the product."""
    xp = array_namespace(left)
    if left.shape[1] == 0:
        return Kernel(left, xp.zeros((0,), dtype=left.dtype, device=left.device), right)
    outer, outer_r = xp.linalg.qr(left)
    inner, inner_r = xp.linalg.qr(right)
    core = Kernel.of(outer_r @ inner_r.T, int(left.shape[1]))
    return Kernel(outer @ core.left, core.values, inner @ core.right)
