"""Where sequences come from: arrays in memory or an open pair file, sampled over the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.errors import DataError
from rankprobe.estimators.model import Sample


class Source(Protocol):
    """What an estimator needs of data; :class:`rankprobe.data.PairFile` is one."""

    @property
    def sequences(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def storage_dtype(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    def read(self, rows: Any, head: int | None = None) -> tuple[Array, Array, Array | None]: ...
    def value_map(self, head: int | None = None) -> Array | None: ...


class ArraySource:
    """X [n, T, d] with Y [n, T, d_v] or [n, H, T, d_h], and optionally V [d, d_v] and mask [n, T].

    Raises :class:`DataError` where shapes disagree or values are not finite.
    """

    def __init__(self, X: Array, Y: Array, V: Array | None = None, mask: Array | None = None) -> None:
        xp = array_namespace(X, Y)
        if X.ndim != 3 or Y.ndim not in (3, 4):
            raise DataError(
                f"X is {tuple(X.shape)}, Y {tuple(Y.shape)}; need [n, T, d] and [n, T, d_v] or [n, H, T, d_h]"
            )
        if X.shape[0] != Y.shape[0] or X.shape[1] != Y.shape[-2]:
            raise DataError(
                f"X {tuple(X.shape)} and Y {tuple(Y.shape)} disagree in the number of sequences or tokens"
            )
        if mask is not None and tuple(mask.shape) != tuple(X.shape[:2]):
            raise DataError(f"mask {tuple(mask.shape)} does not fit X {tuple(X.shape)}; need [n, T]")
        if V is not None and (V.shape[-2], V.shape[-1]) != (X.shape[2], Y.shape[-1]):
            raise DataError(
                f"V {tuple(V.shape)} does not fit X {tuple(X.shape)} and Y {tuple(Y.shape)}; need [d, d_v]"
            )
        self._X, self._Y, self._V, self._mask = X, Y, V, mask
        self.sequences, self.tokens, self.dim = (int(size) for size in X.shape)
        self.value_dim = int(Y.shape[-1])
        self.heads = int(Y.shape[1]) if Y.ndim == 4 else None
        names = [str(a.dtype).split(".")[-1] for a in (X, Y)]
        self.storage_dtype = next(
            (name for name in ("bfloat16", "float16", "float32") if name in names), "float64"
        )
        self.attributes: Mapping[str, Any] = {}
        real = xp.ones(X.shape[:2], dtype=xp.bool, device=X.device) if mask is None else mask
        for name, values in (("X", X), ("Y", Y if Y.ndim == 3 else xp.permute_dims(Y, (0, 2, 1, 3)))):
            bad = ~xp.all(xp.isfinite(xp.reshape(values, (*X.shape[:2], -1))), axis=2) & real
            if bool(xp.any(bad)):
                where = [int(axis[0]) for axis in xp.nonzero(bad)]
                count = int(xp.sum(xp.astype(bad, xp.int64)))
                raise DataError(
                    f"{name}: {count} tokens are not finite (first at {where}); pass mask= without them"
                )

    def read(self, rows: Any, head: int | None = None) -> tuple[Array, Array, Array | None]:
        """X [m, T, d], Y [m, T, d_v] in float64 and mask [m, T] or None; padded tokens are zero."""
        xp = array_namespace(self._X)
        index = xp.asarray(rows, device=self._X.device)
        X = xp.astype(xp.take(self._X, index, axis=0), xp.float64)
        Y = self._Y if head is None else self._Y[:, head, :, :]
        Y = xp.astype(xp.take(Y, index, axis=0), xp.float64)
        if self._mask is None:
            return X, Y, None
        mask = xp.astype(xp.take(self._mask, index, axis=0), xp.bool)
        keep = mask[:, :, None]
        return xp.where(keep, X, xp.zeros_like(X)), xp.where(keep, Y, xp.zeros_like(Y)), mask

    def value_map(self, head: int | None = None) -> Array | None:
        """V [d, d_v] of one head, or None."""
        if self._V is None:
            return None
        xp = array_namespace(self._V)
        return xp.astype(self._V if self._V.ndim == 2 or head is None else self._V[head, ...], xp.float64)


@dataclass
class Sampler:
    """Sequences of one head in a seeded random order over the whole source, read once each."""

    source: Source
    head: int | None
    seed: int
    _read: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = np.random.default_rng(self.seed).permutation(self.source.sequences)

    def take(self, count: int) -> Sample:
        """The first ``count`` sequences of the order."""
        have = sum(part.sequences for part in self._read)
        if count > have:
            # Files are read fastest in ascending order; the set of rows is what is random.
            rows = np.sort(self.order[have:count])
            self._read.append(Sample(*self.source.read(rows, self.head)))
            self._read = [_joined(self._read)]
        return self._read[0].part(0, count)


def _joined(parts: list[Sample]) -> Sample:
    if len(parts) == 1:
        return parts[0]
    xp = array_namespace(parts[0].X)
    mask = None if parts[0].mask is None else xp.concat([part.mask for part in parts], axis=0)
    return Sample(
        xp.concat([part.X for part in parts], axis=0), xp.concat([part.Y for part in parts], axis=0), mask
    )
