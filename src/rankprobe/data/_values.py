"""Stored numbers to float64: which types are accepted, how they are read, how coarse they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from rankprobe.data._attributes import read_attributes
from rankprobe.errors import DataError
from rankprobe.precision import nominal

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Stored:
    """How a dataset's elements are stored.

    ``name`` is what the user reads (``float16``, ``bfloat16``, ``int64``), ``raw`` the numpy type that
    receives the bytes and ``memory`` the HDF5 type that describes them there.
    """

    name: str
    raw: np.dtype[Any]
    memory: Any

    @property
    def precision(self) -> str:
        """bfloat16, float16, float32 or float64 (integers are exact)."""
        return nominal(self.name)

    def convert(self, raw: npt.NDArray[Any], dtype: npt.DTypeLike) -> Floats:
        """Values of raw elements as ``dtype``, a new array of the same shape."""
        if self.name == "bfloat16" and self.raw.kind != "f":
            import ml_dtypes

            bits = raw.view(raw.dtype if raw.dtype.kind in "ui" else np.uint16)
            raw = bits.astype(bits.dtype.newbyteorder("="), copy=False).view(ml_dtypes.bfloat16)
        return raw.astype(dtype)


def stored(dset: Any, label: str, dtype: str | None = None) -> Stored:
    """Element type of a dataset that must hold real numbers.

    ``dtype="bfloat16"`` reads two-byte integers as bfloat16 bits, ``dtype="integer"`` takes them for numbers
    unless their attribute ``dtype`` says bfloat16. Without either they are refused, since the same two bytes
    are written for both. Other types are what they are; opaque two-byte elements are bfloat16, as h5py
    writes it. Of rows of varying length it is the type of the numbers in them.
    """
    kind = dset.id.get_type()
    try:
        raw = dset.dtype
    except (TypeError, ValueError, OSError, RuntimeError):
        raise DataError(f"{label}: has an element type that numpy lacks; store it as float32") from None
    if (numbers := row_type(raw)) is not None:
        kind, raw = kind.get_super(), numbers
    if dtype == "bfloat16" and raw.kind in "ui" and raw.itemsize == 2:
        return Stored("bfloat16", raw, kind)
    if isinstance(kind, h5py.h5t.TypeOpaqueID):
        if raw.itemsize == 2:
            return Stored("bfloat16", raw, kind)
        raise DataError(f"{label}: holds opaque elements of {raw.itemsize} bytes; store it as float32")
    if raw.kind == "f":
        if isinstance(kind, h5py.h5t.TypeFloatID) and kind.get_size() == 2 and kind.get_fields()[2] == 8:
            return Stored("bfloat16", np.dtype(np.float32), h5py.h5t.NATIVE_FLOAT)
        if not isinstance(kind, h5py.h5t.TypeFloatID) or kind.get_size() != raw.itemsize:
            native = np.dtype(raw.newbyteorder("="))
            return Stored(_type_name(raw), native, h5py.h5t.py_create(native))
        return Stored(_type_name(raw), raw, kind)
    if raw.kind in "ui" and raw.itemsize == 2 and "bfloat16" in str(read_attributes(dset).get("dtype")):
        raise DataError(
            f"{label}: holds the bits of bfloat16, as its attribute dtype says; pass --dtype bfloat16"
        )
    if raw.kind in "ui" and raw.itemsize == 2 and dtype is None:
        raise DataError(
            f"{label}: holds 16-bit integers, which may be the bits of bfloat16; "
            "pass --dtype bfloat16, or --dtype integer if they are numbers"
        )
    if raw.kind in "ui":
        return Stored(_type_name(raw), raw, h5py.h5t.py_create(raw))
    if raw.kind == "b":
        return Stored("bool", raw, h5py.h5t.py_create(raw))
    raise DataError(f"{label}: holds {_type_name(raw)}, not real numbers; {_remedy(raw)}")


def row_type(raw: np.dtype[Any]) -> np.dtype[Any] | None:
    """Type of the numbers where elements are rows of varying length, else None (strings too are none)."""
    base = h5py.check_vlen_dtype(raw)
    return base if isinstance(base, np.dtype) else None


def _type_name(raw: np.dtype[Any]) -> str:
    if h5py.check_string_dtype(raw) is not None:
        return "strings"
    if h5py.check_ref_dtype(raw) is not None:
        return "references"
    if raw.kind == "c":
        return "complex numbers"
    if raw.names:
        return "compound records"
    return raw.newbyteorder("=").name


def _remedy(raw: np.dtype[Any]) -> str:
    if raw.kind == "c":
        return "store the real part, or real and imaginary parts as separate features"
    return "name another dataset (see rankprobe inspect)"


def largest(values: Floats) -> float:
    """Largest absolute value: 0 of none, NaN or infinite if one is; no array of that size is made."""
    if values.size == 0:
        return 0.0
    return float(np.maximum(values.max(), -values.min()))


def all_finite(values: Floats) -> bool:
    """Whether no element is NaN or infinite."""
    return bool(np.isfinite(largest(values)))
