"""Reading chosen rows of a dataset: every touched chunk once, neighbouring rows in one request."""

from __future__ import annotations

import itertools
import math
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from rankprobe.data._open import detail
from rankprobe.errors import DataError

Rows = slice | npt.NDArray[np.integer[Any]]
Box = tuple[tuple[int, int], ...]
"""(start, stop) along each axis after the first."""

_GAP_BYTES = 16 << 10
"""Unwanted bytes cheaper to read than to ask around, in contiguous storage."""
_GAP_RUN = 1000
_SPAN_BYTES = 32 << 20
"""Largest scratch buffer of rows of one chunk; beyond it the chunk is read tile by tile."""


def read_rows(
    dset: Any, rows: Rows, box: Box, raw: np.dtype[Any], memory: Any, label: str, together: int | None
) -> npt.NDArray[Any]:
    """Elements [m, *box] of the rows, which are a slice of step 1 or strictly increasing integers.

    ``raw`` and ``memory`` are the numpy and HDF5 types of the elements in memory (see ``Stored``). Rows in
    one group of ``together`` cost as much as one of them; None: each row costs its own bytes.
    """
    reader = _Reader(dset, box, raw, memory, label)
    if isinstance(rows, slice):
        start, stop, _ = rows.indices(dset.shape[0])
        out = reader.empty(max(0, stop - start))
        reader.read(start, out)
        return out
    out = reader.empty(len(rows))
    for first, last in _runs(rows, together, reader.gap_rows):
        reader.pick(rows[first:last], out[first:last])
    return out


def _runs(rows: npt.NDArray[np.integer[Any]], chunk: int | None, gap: int) -> list[tuple[int, int]]:
    """Index ranges of ``rows`` to be read in one request each."""
    if len(rows) == 0:
        return []
    steps = np.diff(rows)
    if chunk is None:
        # Runs joined over gaps are cut every _GAP_RUN rows, or every second row of a file would be one run.
        cut = (steps > gap) | ((steps > 1) & (np.arange(1, len(rows)) % _GAP_RUN == 0))
        return _ranges(cut, len(rows))
    groups = np.diff(rows // chunk) != 0
    out: list[tuple[int, int]] = []
    for first, last in _ranges(groups & (steps != 1), len(rows)):
        dense = rows[last - 1] - rows[first] == last - first - 1
        if dense:
            out.append((first, last))
        else:  # a run with gaps must not leave its chunk, or the scratch buffer would grow with it
            out.extend((first + a, first + b) for a, b in _ranges(groups[first : last - 1], last - first))
    return out


def _ranges(cut: npt.NDArray[np.bool_], count: int) -> list[tuple[int, int]]:
    edges = [0, *(np.flatnonzero(cut) + 1).tolist(), count]
    return list(itertools.pairwise(edges))


class _Reader:
    def __init__(self, dset: Any, box: Box, raw: np.dtype[Any], memory: Any, label: str) -> None:
        self.dset, self.box, self.raw, self.memory, self.label = dset, box, raw, memory, label
        self.sizes = tuple(stop - start for start, stop in box)
        self.row_bytes = max(1, math.prod(self.sizes) * raw.itemsize)
        self.gap_rows = 1 + _GAP_BYTES // self.row_bytes
        self.space = dset.id.get_space()

    def empty(self, count: int) -> npt.NDArray[Any]:
        return np.empty((count, *self.sizes), dtype=self.raw)

    def read(self, start: int, out: npt.NDArray[Any], box: Box | None = None) -> None:
        """Fill ``out`` with the rows from ``start`` on."""
        if out.size == 0:
            return
        corner = (start, *(first for first, _ in (self.box if box is None else box)))
        self.space.select_hyperslab(corner, out.shape)
        try:
            self.dset.id.read(h5py.h5s.create_simple(out.shape), self.space, out, self.memory)
        except (OSError, RuntimeError, ValueError) as error:
            raise DataError(
                f"{self.label}: rows {start} to {start + len(out) - 1} cannot be decoded ({detail(error)}); "
                "the file is damaged: copy or write it again"
            ) from None

    def pick(self, rows: npt.NDArray[np.integer[Any]], out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with these rows, which lie close together."""
        first = int(rows[0])
        span = int(rows[-1]) - first + 1
        if span == len(rows):
            self.read(first, out)
            return
        if span * self.row_bytes <= _SPAN_BYTES:
            scratch = self.empty(span)
            self.read(first, scratch)
            out[...] = scratch[rows - first]
            return
        for tile in self._tiles():
            scratch = np.empty((span, *(stop - start for start, stop in tile)), dtype=self.raw)
            self.read(first, scratch, tile)
            at = tuple(slice(a - base, b - base) for (a, b), (base, _) in zip(tile, self.box, strict=True))
            out[(slice(None), *at)] = scratch[rows - first]

    def _tiles(self) -> list[Box]:
        """The box cut along the chunk borders of the axes after the first."""
        tiles: list[Box] = [()]
        pieces = self.dset.chunks[1:] if self.dset.chunks else self.sizes
        for (start, stop), piece in zip(self.box, pieces, strict=True):
            cuts = [start, *range((start // piece + 1) * piece, stop, piece), stop]
            tiles = [(*tile, cut) for tile in tiles for cut in itertools.pairwise(cuts)]
        return tiles
