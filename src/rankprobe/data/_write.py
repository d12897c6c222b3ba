"""Writing pair files in the documented schema: streamed, chunked along the sequences, atomic."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import h5py
import numpy as np
import numpy.typing as npt

from rankprobe.data._atomic import replacing
from rankprobe.data._open import detail
from rankprobe.errors import DataError, UsageError

ENCODING_TYPE = "rankprobe-pair"
ENCODING_VERSION = "1.0"

_CHUNK_BYTES = 512 << 10

_DTYPES = ("float16", "float32", "float64", "bfloat16")


def write_pairs(
    path: str | os.PathLike[str],
    blocks: Iterable[Sequence[Any]],
    *,
    sequences: int,
    tokens: int,
    dim: int,
    value_dim: int,
    heads: int | None = None,
    dtype: str = "float32",
    mask: bool = False,
    attributes: Mapping[str, Any] | None = None,
    value_map: npt.NDArray[Any] | None = None,
    teacher: Mapping[str, Any] | None = None,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write a pair file; at the end it is there whole, or not at all.

    Parameters
    ----------
    blocks : yields (X [m, T, d], Y [m, T, d_v] or [m, H, T, d_h]) in order, with a mask [m, T] third
        when ``mask`` is set; the m add up to ``sequences``.
    sequences, tokens, dim, value_dim, heads : n, T, d, d_v (of one head) and H (None: no head axis).
    dtype : float16, float32, float64 (``>f4`` and the like for a byte order) or bfloat16, which is stored
        as opaque two-byte elements with the attribute ``dtype="bfloat16"``.
    attributes : root attributes beside ``encoding-type`` and ``encoding-version``; None values are left out.
    value_map : V [d, d_v] or [H, d, d_h], stored as float64.
    teacher : the truth, stored under ``/teacher``: arrays as datasets, the rest as attributes.
    force : replace an existing file.
    progress : called with the number of sequences just written.

    Raises
    ------
    DataError
        the path exists (without ``force``) or cannot be written, the disk is full, a value overflows
        ``dtype``, the blocks do not have the promised shapes.
    UsageError
        ``dtype`` is not one of the above.
    """
    text = os.fspath(path)
    with replacing(text, force=force) as temporary:
        _fill(
            temporary, text, blocks, (sequences, tokens, dim, value_dim), heads, dtype, mask,
            attributes or {}, value_map, teacher, progress,
        )  # fmt: skip


def _fill(
    target: str,
    label: str,
    blocks: Iterable[Sequence[Any]],
    shape: tuple[int, ...],
    heads: int | None,
    dtype: str,
    mask: bool,
    attributes: Mapping[str, Any],
    value_map: npt.NDArray[Any] | None,
    teacher: Mapping[str, Any] | None,
    progress: Callable[[int], None] | None,
) -> None:
    sequences, tokens, dim, value_dim = shape
    kind = _element(dtype)
    with opened_to_write(target, "w", label) as file:
        with hdf5_errors(label):
            file.attrs["encoding-type"] = ENCODING_TYPE
            file.attrs["encoding-version"] = ENCODING_VERSION
            _set_attributes(file, attributes)
            x = _create(file, "X", (sequences, tokens, dim), kind)
            middle = (tokens,) if heads is None else (heads, tokens)
            y = _create(file, "Y", (sequences, *middle, value_dim), kind)
            real = _create(file, "mask", (sequences, tokens), np.dtype(np.bool_)) if mask else None
            if value_map is not None:
                file["V"] = np.asarray(value_map, dtype=np.float64)
            if teacher is not None:
                _write_teacher(file.create_group("teacher"), teacher)
        done = 0
        for block in blocks:
            done += _append(label, done, block, (x, y, real), progress)
        if done != sequences:
            raise DataError(f"{label}: {done} of {sequences} sequences were given; not written")


@contextmanager
def opened_to_write(path: str, mode: str, label: str) -> Iterator[Any]:
    """``h5py.File`` that can be closed even when the disk is full; on an error ``path`` is left broken."""
    with hdf5_errors(label):
        file = h5py.File(path, mode, libver=("earliest", "v110"))
    try:
        yield file
        with hdf5_errors(label):
            file.flush()
    except BaseException:
        _abandon(file)
        raise
    with hdf5_errors(label):
        file.close()


def _abandon(file: Any) -> None:
    """Close, with what HDF5 still holds sent to nowhere: it cannot drop it, and when writing it fails too,
    the process crashes as it ends."""
    with suppress(OSError, RuntimeError, ValueError, NotImplementedError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            os.dup2(nowhere, file.id.get_vfd_handle())
        finally:
            os.close(nowhere)
    with suppress(OSError, RuntimeError, ValueError):
        file.close()


@contextmanager
def hdf5_errors(label: str) -> Iterator[None]:
    """HDF5's own failures to write as one line."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise DataError(f"{label}: cannot be written ({_why(error)}); free space or choose another") from None


def _why(error: OSError | RuntimeError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        found = re.search(r"errno = (\d+)", str(error))
        number = int(found[1]) if found else None
    return os.strerror(number) if number else detail(error)


def _append(
    label: str,
    done: int,
    block: Sequence[Any],
    targets: tuple[Any, Any, Any],
    progress: Callable[[int], None] | None,
) -> int:
    parts = [np.asarray(part) for part in block if part is not None]
    wanted = [target for target in targets if target is not None]
    if len(parts) != len(wanted):
        names = "X, Y, mask" if len(wanted) == 3 else "X, Y"
        raise DataError(f"{label}: a block holds {len(parts)} arrays, not {names}; not written")
    count = len(parts[0])
    for part, target in zip(parts, wanted, strict=True):
        if part.shape[1:] != target.shape[1:] or len(part) != count or done + count > target.shape[0]:
            raise DataError(
                f"{label}: a block {list(part.shape)} at sequence {done} does not fit "
                f"{target.name} {list(target.shape)}; not written"
            )
        values = _encode(part, target.dtype, f"{label}::{target.name}")
        with hdf5_errors(label):
            target[done : done + count] = values
    if progress is not None:
        progress(count)
    return count


def _element(dtype: str) -> np.dtype[Any]:
    if dtype == "bfloat16":
        return np.dtype("V2")
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.newbyteorder("=").name not in _DTYPES:
        raise UsageError(f"dtype {dtype}: must be one of {', '.join(_DTYPES)}")
    return kind


def _encode(values: npt.NDArray[Any], kind: np.dtype[Any], label: str) -> npt.NDArray[Any]:
    if kind.kind == "b":
        return values.astype(np.bool_)
    with np.errstate(over="ignore"):
        if kind.kind == "V":
            import ml_dtypes

            cast_to: Any = ml_dtypes.bfloat16
        else:
            cast_to = kind
        out = values.astype(cast_to)
    if kind.itemsize < values.dtype.itemsize and values.dtype.kind == "f":
        lost = np.isinf(out) & np.isfinite(values)
        if lost.any():
            name = "bfloat16" if kind.kind == "V" else kind.name
            raise DataError(f"{label}: {int(lost.sum())} values overflow {name}; write float32")
    return out.view("V2") if kind.kind == "V" else out


def _create(file: Any, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> Any:
    row = max(1, math.prod(shape[1:]) * kind.itemsize)
    rows = min(max(1, _CHUNK_BYTES // row), max(1, shape[0]))
    dset = file.create_dataset(name, shape, kind, chunks=(rows, *shape[1:]))
    if kind.kind == "V":
        dset.attrs["dtype"] = "bfloat16"
    return dset


def _write_teacher(group: Any, teacher: Mapping[str, Any]) -> None:
    arrays = {name: value for name, value in teacher.items() if np.ndim(value) > 0}
    for name, value in arrays.items():
        group[name] = np.asarray(value)
    _set_attributes(group, {name: value for name, value in teacher.items() if name not in arrays})


def _set_attributes(obj: Any, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        if value is not None:
            obj.attrs[name] = cast(Any, value)
