"""Sequences in pieces: a dataset for each of them (``*/X``), or one dataset of rows of varying length."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from rankprobe.data._fields import Field, Plain
from rankprobe.data._heaps import row_counts
from rankprobe.data._open import Located, check_heaps, detail, locate
from rankprobe.data._rows import Box, Rows, read_rows
from rankprobe.data._storage import check_stored
from rankprobe.data._values import Stored, row_type, stored
from rankprobe.errors import DataError

_BLOCK = 1 << 20
"""Numbers of rows that are read together."""


def open_field(
    found: Located, file: Any, label: str, dtype: str | None, dim: int | None, *, allow_external: bool
) -> Field:
    """Field of one dataset; raises :class:`DataError` when it holds no real numbers or is not all there.

    Rows of varying length hold the ``dim`` features of a token, then those of the next.
    """
    if not isinstance(found.obj, h5py.Dataset):
        raise DataError(f"{label}: is a group, not a dataset; name one inside it")
    check_stored(found.obj, file, label, allow_external=allow_external)
    if not varies(found.obj):
        return Plain(found, label, stored(found.obj, label, dtype))
    if dim is None:
        raise DataError(
            f"{label}: holds rows of varying length; pass --dim with the number of features of a token in X"
        )
    return Varying(found, label, stored(found.obj, label, dtype), dim)


def varies(dset: Any) -> bool:
    """Whether the elements are rows of varying length (and not strings)."""
    try:
        return row_type(dset.dtype) is not None
    except (TypeError, ValueError, OSError, RuntimeError):
        return False


class Varying(Field):
    """A dataset [n] whose row i holds T_i * width numbers: a field [n, max T, width]."""

    def __init__(self, found: Located, label: str, kind: Stored, width: int) -> None:
        self._dset = found.obj
        if len(self._dset.shape) != 1:
            raise DataError(
                f"{label}: shape {list(self._dset.shape)} of rows of varying length is not [n]; "
                "store a row for each sequence"
            )
        self.counts = self._counted(label, kind.raw.itemsize)
        wrong = np.flatnonzero(self.counts % width)
        if wrong.size:
            raise DataError(
                f"{label}: row {wrong[0]} holds {self.counts[wrong[0]]} numbers, which are no multiple of "
                f"{width} features; pass --dim with the features of a token in X"
            )
        super().__init__(label, kind, *_spread(self.counts // width, width))

    @classmethod
    def beside(cls, found: Located, label: str, kind: Stored, lengths: npt.NDArray[np.int64]) -> Varying:
        """The field whose row i holds ``lengths[i]`` tokens; raises :class:`DataError` if they cannot."""
        made = cls(found, label, kind, 1)
        real = lengths > 0
        widths = made.counts[real] // lengths[real] if made.counts.shape == lengths.shape else np.empty(0)
        width = int(widths[0]) if widths.size else 0
        if not width or not np.array_equal(made.counts, lengths * width):
            raise DataError(
                f"{label}: its rows do not hold as many tokens as those of X; "
                "name matching datasets with --x and --y, or check --dim"
            )
        made.shape, _, made.sizes = _spread(lengths, width)
        return made

    def _counted(self, label: str, itemsize: int) -> npt.NDArray[np.int64]:
        path = self._dset.file.filename
        check_heaps(path, label)
        try:
            counts = row_counts(self._dset)
        except (OSError, RuntimeError, ValueError, zlib.error) as error:
            raise DataError(
                f"{label}: its rows cannot be counted ({detail(error)}); the file is damaged: write it again"
            ) from None
        if counts is None:
            raise DataError(
                f"{label}: holds rows of varying length stored in a way not known here; "
                "store them with gzip or uncompressed"
            )
        wrong = np.flatnonzero(counts * itemsize > Path(path).stat().st_size)
        if wrong.size:
            raise DataError(
                f"{label}: row {wrong[0]} claims {counts[wrong[0]]} numbers, more than the file holds; "
                "the file is damaged: copy or write it again"
            )
        return counts

    def _blocks(self, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """The rows in groups of few numbers, for HDF5 reads a group at once."""
        group = np.cumsum(self.counts[rows] + 1) // _BLOCK
        yield from np.split(rows, np.flatnonzero(np.diff(group)) + 1)

    def _rows(self, label: str, rows: Rows) -> Iterator[npt.NDArray[Any]]:
        numbers = row_type(self._dset.dtype)
        swap = numbers is not None and not numbers.isnative and _unswapped()
        wanted = np.arange(self._dset.shape[0])[rows]
        for chosen in self._blocks(wanted) if wanted.size else ():
            try:
                together = self._dset[chosen[0] : chosen[-1] + 1] if dense(chosen) else self._dset[chosen]
            except (OSError, RuntimeError, ValueError, MemoryError) as error:
                raise DataError(
                    f"{label}: rows {chosen[0]} to {chosen[-1]} cannot be decoded ({detail(error)}); "
                    "the file is damaged: copy or write it again"
                ) from None
            for row in together:
                yield row.view(numbers) if swap else row

    def _read(self, rows: Rows, box: Box) -> npt.NDArray[Any]:
        (first, last), (left, right) = box
        width = self.shape[2]
        count = len(range(*rows.indices(self.shape[0]))) if isinstance(rows, slice) else len(rows)
        out = np.zeros((count, last - first, right - left), dtype=self.stored.raw)
        for at, row in enumerate(self._rows(self.label, rows)):
            values = row.reshape(-1, width)[first:last, left:right]
            out[at, : len(values)] = values
        return out


@cache
def _unswapped() -> bool:
    """Whether h5py hands out rows of the other byte order as if they were native (3.16 does)."""
    other = np.dtype(np.int32).newbyteorder("S")
    with h5py.File("probe", "w", driver="core", backing_store=False) as file:
        dset = file.create_dataset("x", (1,), h5py.vlen_dtype(other))
        dset[0] = np.ones(1, dtype=other)
        return int(dset[0][0]) != 1


def dense(rows: npt.NDArray[Any]) -> bool:
    return bool(rows[-1] - rows[0] == len(rows) - 1)


def _spread(lengths: npt.NDArray[np.int64], width: int) -> tuple[tuple[int, ...], None, Any]:
    """Shape, chunks and sizes of a field whose sequences have these lengths."""
    sizes = np.stack([lengths, np.full(len(lengths), width)], axis=1)
    return (len(lengths), int(lengths.max(initial=0)), width), None, sizes


class Series(Field):
    """Datasets of one name pattern in turn, as if they were one.

    ``members`` are their paths by what the ``*`` of ``pattern`` stands for. Each is a sequence of its own
    (``single``: its shape lacks the leading axis), or a batch of sequences; None: of two axes it is one.
    """

    def __init__(
        self,
        file: Any,
        label: str,
        pattern: str,
        members: dict[tuple[str, ...], str],
        dtype: str | None,
        *,
        single: bool | None,
        allow_external: bool,
    ) -> None:
        self._file, self._label, self._external = file, label, allow_external
        self.pattern, self.members, self._paths = pattern, members, list(members.values())
        kinds: list[Stored] = []
        shapes: list[tuple[int, ...]] = []
        for path in self._paths:
            dset, shown = self._member(path), f"{label}::{path}"
            if varies(dset):
                raise DataError(f"{shown}: holds rows of varying length; name it alone, without a *")
            check_stored(dset, file, shown, allow_external=allow_external)
            kind = stored(dset, shown, dtype)
            single = len(dset.shape) == 2 if single is None else single
            shape = (1, *dset.shape) if single else tuple(dset.shape)
            if kinds and (kind.name, len(shape)) != (kinds[0].name, len(shapes[0])):
                raise DataError(
                    f"{shown}: is {kind.name} {list(dset.shape)}, unlike {self._paths[0]}; "
                    "store all in one type and number of axes"
                )
            kinds.append(kind)
            shapes.append(shape)
        self.single = bool(single)
        self._kinds = kinds
        counts = [shape[0] for shape in shapes]
        self._ends = np.cumsum(counts)
        sizes = np.repeat(np.array([shape[1:] for shape in shapes], dtype=np.int64), counts, axis=0)
        longest = tuple(int(size) for size in sizes.max(axis=0, initial=0))
        alike = bool((sizes == longest).all())
        native = replace(kinds[0], raw=kinds[0].raw.newbyteorder("="))
        shape = (int(self._ends[-1]), *longest)
        super().__init__(f"{label}::{pattern}", native, shape, sizes=None if alike else sizes)

    def _member(self, path: str) -> Any:
        found = locate(self._file, path, self._label, allow_external=self._external)
        if found is None or not isinstance(found.obj, h5py.Dataset):
            raise DataError(f"{self._label}::{path}: is no dataset of numbers; name others with --x and --y")
        return found.obj

    def _read(self, rows: Rows, box: Box) -> npt.NDArray[Any]:
        wanted = np.arange(self.shape[0])[rows]
        out = np.zeros((len(wanted), *(stop - start for start, stop in box)), dtype=self.stored.raw)
        members = np.searchsorted(self._ends, wanted, side="right")
        for member in np.unique(members):
            at = np.flatnonzero(members == member)
            part = out[at[0] : at[-1] + 1]
            dset = self._member(self._paths[member])  # opened anew: every open one would hold a cache
            chosen: Rows
            inner = dset.shape if self.single else dset.shape[1:]
            clipped = tuple((start, min(stop, size)) for (start, stop), size in zip(box, inner, strict=True))
            if self.single:
                chosen, part, clipped = slice(*clipped[0]), part[0], clipped[1:]
            else:
                local = wanted[at] - self._start(member)
                chosen = slice(int(local[0]), int(local[-1]) + 1) if dense(local) else local
            kind, shown = self._kinds[member], f"{self._label}::{self._paths[member]}"
            values = read_rows(dset, chosen, clipped, kind.raw, kind.memory, shown, None)
            part[tuple(slice(0, size) for size in values.shape)] = values
        return out

    def _start(self, member: int) -> int:
        return int(self._ends[member - 1]) if member else 0

    def place(self, index: list[int]) -> tuple[str, list[int]]:
        member = int(np.searchsorted(self._ends, index[0], side="right"))
        local = index[1:] if self.single else [index[0] - self._start(member), *index[1:]]
        return f"{self._label}::{self._paths[member]}", local
