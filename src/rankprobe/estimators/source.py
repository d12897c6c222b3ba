"""Where sequences come from: arrays in memory or an open pair file, sampled over the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.errors import DataError, UsageError
from rankprobe.estimators.model import Sample
from rankprobe.precision import INPUTS, OUTPUTS, SAMPLE, coarser, effective, nominal, out_of_range


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
    def heads(self) -> int | None: ...
    @property
    def storage_dtype(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    def read(self, rows: Any, head: int | None = None) -> tuple[Array, Array, Array | None]: ...
    def value_map(self, head: int | None = None) -> Array | None: ...


class ArraySource:
    """X [n, T, d] with Y [n, T, d_v] or [n, H, T, d_h], and optionally V [d, d_v] and mask [n, T].

    With ``nan="skip"`` tokens that are not finite count as padding.

    Raises
    ------
    UsageError
        they are not arrays of one library on one device, require gradients, or ``head`` names no head of Y.
    DataError
        shapes disagree, something is empty, values are not real numbers or not finite, or their squares
        overflow or vanish.
    """

    def __init__(
        self,
        X: Array,
        Y: Array,
        V: Array | None = None,
        mask: Array | None = None,
        nan: Literal["error", "skip"] = "error",
    ) -> None:
        given = {"X": X, "Y": Y, "V": V, "mask": mask}
        xp = _one_library({name: array for name, array in given.items() if array is not None})
        if X.ndim != 3 or Y.ndim not in (3, 4):
            raise DataError(
                f"X is {tuple(X.shape)}, Y {tuple(Y.shape)}; need [n, T, d] and [n, T, d_v] or [n, H, T, d_h]"
            )
        if X.shape[0] != Y.shape[0] or X.shape[1] != Y.shape[-2]:
            raise DataError(
                f"X {tuple(X.shape)} and Y {tuple(Y.shape)} disagree in the number of sequences or tokens"
            )
        if 0 in (*X.shape, *Y.shape):
            raise DataError(
                f"X {tuple(X.shape)} and Y {tuple(Y.shape)} hold no values; check what was selected"
            )
        self.sequences, self.tokens, self.dim = (int(size) for size in X.shape)
        self.value_dim = int(Y.shape[-1])
        self.heads = int(Y.shape[1]) if Y.ndim == 4 else None
        if mask is not None:
            if tuple(mask.shape) != tuple(X.shape[:2]):
                raise DataError(f"mask {tuple(mask.shape)} does not fit X {tuple(X.shape)}; need [n, T]")
            if bool(xp.any((mask != 0) & (mask != 1))):
                raise DataError(
                    "mask holds other values than 1 at real tokens and 0 at padding; pass it as bool"
                )
            mask = mask == 1
        shapes = [(self.dim, self.value_dim), (self.heads, self.dim, self.value_dim)]
        if V is not None and tuple(V.shape) not in shapes:
            raise DataError(
                f"V {tuple(V.shape)} does not fit X {tuple(X.shape)} and Y {tuple(Y.shape)}; "
                "need [d, d_v], or [H, d, d_h] for heads"
            )
        self._X, self._Y, self._V, self._mask = X, Y, V, mask
        self.attributes: Mapping[str, Any] = {}
        self._check_finite(xp, nan == "skip")
        for name, values, limits in (("X", X, INPUTS), ("Y", Y, OUTPUTS)):
            wrong = out_of_range(self._largest(xp, values), limits, _dtype(values))
            if wrong is not None:
                raise DataError(f"{name}: {wrong}")

    def _largest(self, xp: Any, values: Array) -> float:
        """Largest absolute value at a real token; 1 where all are zero, or none is real."""
        if self._mask is not None:
            keep = self._mask[:, :, None] if values.ndim == 3 else self._mask[:, None, :, None]
            values = xp.where(keep, values, xp.zeros_like(values))
        return max(float(xp.max(values)), -float(xp.min(values))) or 1.0

    def _check_finite(self, xp: Any, skip: bool) -> None:
        X, Y = self._X, self._Y
        real = xp.ones(X.shape[:2], dtype=xp.bool, device=X.device) if self._mask is None else self._mask
        for name, values in (("X", X), ("Y", Y if Y.ndim == 3 else xp.permute_dims(Y, (0, 2, 1, 3)))):
            bad = ~xp.all(xp.isfinite(xp.reshape(values, (*X.shape[:2], -1))), axis=2) & real
            if skip and bool(xp.any(bad)):
                self._mask = real = real & ~bad
            elif bool(xp.any(bad)):
                where = [int(axis[0]) for axis in xp.nonzero(bad)]
                count = int(xp.sum(xp.astype(bad, xp.int64)))
                raise DataError(
                    f"{name}: {count} tokens are not finite (first at {where}); "
                    "pass nan='skip', or mask= without them"
                )
        if self._V is not None and not bool(xp.all(xp.isfinite(self._V))):
            raise DataError("V: holds values that are not finite; pass it again or use v-unknown")

    @cached_property
    def storage_dtype(self) -> str:
        """The coarser precision of X and Y, in whatever type their values came."""
        xp = array_namespace(self._X)
        found = []
        for values in (self._X, self._Y if self._Y.ndim == 3 else self._Y[:, 0, :, :]):
            some = values[: 1 + SAMPLE // (self.tokens * int(values.shape[-1])), ...]
            if self._mask is not None:
                some = some[self._mask[: some.shape[0], :]]
            found.append(effective(_numpy(xp.astype(some, xp.float64)), nominal(_dtype(values))))
        return coarser(*found)

    def read(self, rows: Any, head: int | None = None) -> tuple[Array, Array, Array | None]:
        """X [m, T, d], Y [m, T, d_v] in float64 and mask [m, T] or None; padded tokens are zero."""
        self._check_head(head)
        xp = array_namespace(self._X)
        index = xp.asarray(rows, device=self._X.device)
        X = xp.astype(xp.take(self._X, index, axis=0), xp.float64)
        Y = self._Y if head is None else self._Y[:, head, :, :]
        Y = xp.astype(xp.take(Y, index, axis=0), xp.float64)
        if self._mask is None:
            return X, Y, None
        mask = xp.take(self._mask, index, axis=0)
        keep = mask[:, :, None]
        return xp.where(keep, X, xp.zeros_like(X)), xp.where(keep, Y, xp.zeros_like(Y)), mask

    def value_map(self, head: int | None = None) -> Array | None:
        """V [d, d_v] of one head, or None."""
        self._check_head(head)
        if self._V is None:
            return None
        xp = array_namespace(self._V)
        return xp.astype(self._V if self._V.ndim == 2 or head is None else self._V[head, ...], xp.float64)

    def _check_head(self, head: int | None) -> None:
        if self.heads is None and head is not None:
            raise UsageError(f"Y {tuple(self._Y.shape)} has no axis for heads; leave out head={head}")
        if self.heads is not None and head not in range(self.heads):
            raise UsageError(f"Y holds {self.heads} heads; name one of 0 to {self.heads - 1} as head")


def _one_library(arrays: Mapping[str, Any]) -> Any:
    """Array library of all; raises unless it can compute with their values as they are."""
    try:
        xp = array_namespace(*arrays.values())
        places = {str(array.device) for array in arrays.values()}
    except (TypeError, AttributeError):
        kinds = ", ".join(f"{name} is a {type(array).__name__}" for name, array in arrays.items())
        raise UsageError(f"{kinds}; pass arrays of one library (numpy.asarray converts)") from None
    if len(places) > 1:
        raise UsageError(f"the arrays lie on {' and '.join(sorted(places))}; move them to one device")
    for name, array in arrays.items():
        dtype = _dtype(array)
        if dtype.startswith("complex"):
            raise DataError(f"{name} holds {dtype}; pass the real part, or both parts as separate features")
        if not dtype.startswith(("float", "bfloat", "int", "uint", "bool")):
            raise DataError(f"{name} holds {dtype}, not real numbers; convert it, as to float64")
        if getattr(array, "requires_grad", False):
            raise UsageError(f"{name} requires gradients, and none are computed here; pass {name}.detach()")
    return xp


def _numpy(array: Array) -> Array:
    if isinstance(array, np.ndarray):
        return array
    from array_api_compat import to_device

    return np.asarray(to_device(array, "cpu"))


def _dtype(array: Array) -> str:
    """Name of the element type, without its library."""
    return getattr(array.dtype, "name", None) or str(array.dtype).rsplit(".", 1)[-1]


def source_of(
    X: Array | Source,
    Y: Array | None,
    V: Array | None = None,
    mask: Array | None = None,
    nan: Literal["error", "skip"] = "error",
) -> Source:
    """Arrays as a source, or the open pair file given as ``X``.

    Raises :class:`UsageError` where neither is there, and what :class:`ArraySource` raises.
    """
    if nan not in ("error", "skip"):
        raise UsageError(f"nan={nan!r} must be error or skip")
    if Y is not None:
        return ArraySource(X, Y, V, mask, nan)
    if not hasattr(X, "read"):
        raise UsageError("a call needs Y [n, T, d_v] beside X, or a pair file as X")
    if nan == "skip":
        raise UsageError("the pair file is open already; pass nan='skip' to open_pairs")
    return X


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
