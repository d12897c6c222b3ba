"""An open pair file: tokens X and attention outputs Y of one layer, read in blocks of sequences."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import h5py
import numpy as np
import numpy.typing as npt

from rankprobe.data._attributes import inherited, read_attributes, settle
from rankprobe.data._fields import Field, Inputs, Outputs, Padding
from rankprobe.data._names import masks_beside, no_group
from rankprobe.data._open import children, locate, open_file
from rankprobe.data._opener import Opener
from rankprobe.data._paths import join, split_path, spooled
from rankprobe.data._proposals import no_pair
from rankprobe.data._rows import Rows
from rankprobe.data._storage import check_stored
from rankprobe.data._value_map import ValueMap
from rankprobe.data._values import Floats, largest
from rankprobe.errors import DataError, UsageError
from rankprobe.precision import INPUTS, OUTPUTS, SAMPLE, coarser, effective, out_of_range

Mask = npt.NDArray[np.bool_]
Block = tuple[Floats, Floats, Mask | None]
"""X [m, T, d], Y [m, T, d_v], mask [m, T] (true = real token) or None."""

_DEFAULT_MEMORY = 256 << 20


def open_pairs(
    path: str | os.PathLike[str],
    *,
    x: str | None = None,
    y: str | None = None,
    v: str | None = None,
    mask: str | None = None,
    tokens: int | None = None,
    heads: int | None = None,
    dim: int | None = None,
    dtype: str | None = None,
    nan: Literal["error", "skip"] = "error",
    allow_external: bool = False,
    stream: BinaryIO | None = None,
) -> PairFile:
    """Open the pair in ``FILE`` or ``FILE::/group`` for reading; use as a context manager.

    Only shapes, types and storage are looked at; values are read by :meth:`PairFile.read`.

    Parameters
    ----------
    x, y, v, mask : dataset names below the group (or absolute); the defaults are X, Y, V and mask, the
        last two where they exist. Other names are never guessed: the error names the flags to use.
        ``FILE::/name`` is a dataset of another file. With a ``*``, which stands for any text without a
        slash, as in ``seq_*/X``: all datasets of that pattern, [T, d] each a sequence or [m, T, d] each a
        batch; those of X and Y belong together for which ``*`` stands for the same text.
    tokens : sequence length T of datasets flattened to [n*T, d].
    heads : number of heads H of a Y [n, T, H*d_h] that holds them side by side.
    dim : features d of a token, where X is a dataset [n] of rows of varying length T_i*d (and Y of T_i*d_v).
    dtype : ``bfloat16`` reads two-byte integers as bfloat16 bits, ``integer`` as numbers.
    nan : ``error`` refuses NaN and infinite values at real tokens, ``skip`` marks such tokens as not real.
    allow_external : follow external links, external storage and virtual sources in other files.
    stream : read the file from this binary stream (spooled to a temporary file); ``path`` names it.

    Raises
    ------
    DataError
        the file or a dataset is missing, damaged, never written, of a wrong type or shape.
    UsageError
        ``tokens``, ``heads``, ``dtype`` or ``nan`` make no sense.
    MissingDependencyError
        a dataset is compressed with a filter that is not installed.
    """
    for name, value in (("tokens", tokens), ("heads", heads), ("dim", dim)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1")
    if nan not in ("error", "skip"):
        raise UsageError(f"--nan {nan}: must be error or skip")
    if dtype not in (None, "bfloat16", "integer"):
        raise UsageError(f"--dtype {dtype}: must be bfloat16 or integer")
    label, prefix = split_path(path)
    with ExitStack() as stack:
        real = stack.enter_context(spooled(stream)) if stream is not None else label
        file = stack.enter_context(open_file(real, label))
        root = locate(file, prefix, label, allow_external=allow_external)
        if root is None:
            raise no_group(file, label, prefix)
        if isinstance(root.obj, h5py.Dataset):
            raise DataError(
                f"{label}::{prefix}: is a dataset; the part after :: names a group, --x and --y name datasets"
            )

        opener = Opener(file, label, prefix, dtype, allow_external, stack)
        x_field = opener.field(x, "X", dim=dim)
        y_field = None if x_field is None else opener.field(y, "Y", beside=x_field)
        if x_field is None or y_field is None:
            raise no_pair(file, label, prefix, "X" if x_field is None else "Y")
        if dtype == "bfloat16" and "bfloat16" not in (x_field.stored.name, y_field.stored.name):
            raise DataError(
                f"{x_field.label}: is {x_field.stored.name}, not two-byte integers; drop --dtype bfloat16"
            )
        if dim is not None and dim != x_field.shape[-1]:
            raise DataError(f"{x_field.label}: has {x_field.shape[-1]} features a token; drop --dim {dim}")
        inputs = Inputs(x_field, tokens)
        outputs = Outputs(y_field, inputs, heads)
        mask_field = opener.field(mask, "mask", beside=x_field, numbers=False)
        v_field = opener.field(v, "V")
        attributes, remarks = settle(inherited(file, prefix, label, allow_external))
        pairs = PairFile(
            label,
            prefix,
            inputs,
            outputs,
            None if mask_field is None and inputs.lengths is None else Padding(mask_field, inputs),
            None if v_field is None else ValueMap(v_field, inputs, outputs),
            attributes=attributes,
            remarks=remarks,
            skip=nan == "skip",
            file=file,
        )
        pairs.on_close(stack.pop_all().close)
    return pairs


class PairFile:
    """An open pair file. Made by :func:`open_pairs`; closes itself at the end of a ``with`` block.

    Attributes
    ----------
    path, prefix : the file as named by the user, and the group in it (``/``).
    x_name, y_name, v_name, mask_name : absolute dataset names; the last two may be None.
    sequences, tokens, dim, value_dim : n, T, d and d_v (of one head).
    heads : H, or None where Y has no heads.
    x_dtype, y_dtype : element types as stored (``float16``, ``bfloat16``, ``int32``, ...).
    storage_dtype : the coarser precision of the two, as bfloat16, float16, float32 or float64; what was
        rounded before it was stored counts as what it was rounded to, integers are exact.
    attributes : root attributes, overlaid by those of the groups down to ``prefix``; plain values.
    notes : remarks for the user on what was found and not used, one line each.
    """

    def __init__(
        self,
        path: str,
        prefix: str,
        inputs: Inputs,
        outputs: Outputs,
        padding: Padding | None,
        value_map: ValueMap | None,
        *,
        attributes: dict[str, Any],
        remarks: list[str],
        skip: bool,
        file: Any,
    ) -> None:
        self.path, self.prefix = path, prefix
        self._inputs, self._outputs, self._padding, self._value_map = inputs, outputs, padding, value_map
        self._skip, self._file = skip, file
        self._close: Callable[[], None] | None = None
        self.x_name, self.y_name = self._name(inputs.field), self._name(outputs.field)
        self.v_name = self._name(value_map.field) if value_map is not None else None
        self.mask_name = self._name(padding.field) if padding is not None and padding.field else None
        self.sequences, self.tokens, self.dim = inputs.sequences, inputs.tokens, inputs.dim
        self.heads, self.value_dim = outputs.heads, outputs.value_dim
        self.x_dtype, self.y_dtype = inputs.field.stored.name, outputs.field.stored.name
        self.attributes: Mapping[str, Any] = attributes
        self.notes = (*self._notes(), *(f"{self.label}: {remark}" for remark in remarks))

    def _name(self, field: Field) -> str:
        """Absolute name in this file, or ``FILE::/name`` in another."""
        return field.label.removeprefix(f"{self.path}::")

    def _notes(self) -> Iterator[str]:
        if len(self._outputs.field.shape) == 4 and self._outputs.heads == self.tokens:
            yield (
                f"{self._outputs.field.label}: as many heads as tokens; its second axis is taken for heads, "
                "if it is the third store [n, T, H*d_h] and pass --heads"
            )
        lengths = self._inputs.lengths
        if lengths is not None and not lengths.all():
            empty = np.flatnonzero(lengths == 0)
            yield (
                f"{self._inputs.field.label}: {empty.size} of {self.sequences} sequences are empty (first "
                f"{empty[0]}); were they written?"
            )
        if self._padding is None:
            near_x = self.x_name.rpartition("/")[0] or "/"
            for item in masks_beside(self._file, near_x, self.path, (self.sequences, self.tokens)):
                yield (
                    f"{self.path}::{item.path}: may be the padding mask and is not used; "
                    f"pass --mask {shlex.quote(item.path)} if it is"
                )

    @cached_property
    def storage_dtype(self) -> str:
        """Seen from the first sequences, which are read for it."""
        read_y = partial(self._outputs.read, head=None if self.heads is None else 0)
        return coarser(
            self._precision(self._inputs.field, self._inputs.read, self.dim),
            self._precision(self._outputs.field, read_y, self.value_dim),
        )

    def _precision(self, field: Field, read: Callable[..., Floats], width: int) -> str:
        rows = slice(0, min(self.sequences, 1 + SAMPLE // (self.tokens * width)))
        values = read(rows, dtype=np.float64)
        if self._padding is not None:
            values = values[self._padding.read(rows)]
        return effective(values, field.stored.precision)

    @property
    def label(self) -> str:
        """``FILE`` or ``FILE::/group``, as messages and results name the pair."""
        return self.path if self.prefix == "/" else f"{self.path}::{self.prefix}"

    @property
    def masked(self) -> bool:
        """Whether :meth:`read` gives a mask (there is one, or NaN tokens are skipped)."""
        return self._padding is not None or self._skip

    def __repr__(self) -> str:
        heads = "" if self.heads is None else f", heads={self.heads}"
        return (
            f"PairFile({self.label!r}, sequences={self.sequences}, tokens={self.tokens}, dim={self.dim}, "
            f"value_dim={self.value_dim}{heads})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def on_close(self, close: Callable[[], None]) -> None:
        """Call this once when the pair file is closed."""
        self._close = close

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._close is not None:
            self._close()
            self._close = None

    def read(
        self,
        rows: slice | npt.NDArray[np.integer[Any]] | Sequence[int],
        head: int | None = None,
        dtype: npt.DTypeLike = np.float64,
    ) -> Block:
        """Some sequences: X [m, T, d], Y [m, T, d_v] and the mask [m, T], or None where all tokens are real.

        Tokens that are not real come back as zeros, whatever stood there.

        Parameters
        ----------
        rows : slice, or integers from 0 to n - 1; chunks touched are read once, neighbours together.
        head : which head of Y; needed exactly when ``heads`` is not None.
        dtype : of X and Y.

        Raises
        ------
        DataError
            NaN or infinite values at real tokens (with ``nan="error"``), values so large or small that their
            squares are lost, damaged chunks, a mask that is none.
        UsageError
            rows or head out of range.
        """
        self._outputs.check_head(head)
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.sequences)
            if step == 1:
                return self._read(slice(start, max(start, stop)), head, dtype)
            rows = np.arange(start, stop, step)
        chosen, order = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        if chosen.size and (chosen[0] < 0 or chosen[-1] >= self.sequences):
            wrong = chosen[0] if chosen[0] < 0 else chosen[-1]
            raise UsageError(f"{self.label}: no row {wrong}; rows run from 0 to {self.sequences - 1}")
        X, Y, mask = self._read(chosen, head, dtype)
        if order.size == chosen.size and bool((order[1:] > order[:-1]).all()):
            return X, Y, mask
        return X[order], Y[order], None if mask is None else mask[order]

    def _read(self, rows: Rows, head: int | None, dtype: npt.DTypeLike) -> Block:
        X = self._inputs.read(rows, dtype)
        Y = self._outputs.read(rows, head, dtype)
        mask = None if self._padding is None else self._padding.read(rows)
        if mask is not None:
            X[~mask], Y[~mask] = 0, 0
        for values, side, limits in ((X, self._inputs, INPUTS), (Y, self._outputs, OUTPUTS)):
            top = largest(values)
            if np.isfinite(top):
                wrong = out_of_range(top, limits, side.field.stored.name) if top > 0 else None
                if wrong is not None:
                    raise DataError(f"{side.field.label}: {wrong}")
                continue
            if not self._skip:
                raise self._not_finite(values, side, rows, head)
            good: Mask = np.all(np.isfinite(values), axis=-1)
            mask = good if mask is None else mask & good
        if self._skip:
            if mask is None:
                mask = np.ones(X.shape[:2], dtype=np.bool_)
            X[~mask], Y[~mask] = 0, 0
        return X, Y, mask

    def _not_finite(self, values: Floats, side: Inputs | Outputs, rows: Rows, head: int | None) -> DataError:
        nans = np.isnan(values)
        what, bad = ("NaN", nans) if nans.any() else ("infinite", np.isinf(values))
        at = [int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape)]
        row = (rows.start + at[0]) if isinstance(rows, slice) else int(rows[at[0]])
        if isinstance(side, Outputs):
            shown, place = side.place(row, at[1], at[2], head)
        else:
            shown, place = side.place(row, at[1], at[2])
        read = "" if len(values) == self.sequences else " read"
        why = ""
        if what == "infinite" and side.field.stored.name == "float16":
            why = " (float16 ends at 65504: capture in float32)"
        return DataError(
            f"{shown}: {int(bad.sum())} of {bad.size} values{read} are {what} (first at {place})"
            f"{why}; pass --nan skip or mask those tokens"
        )

    def blocks(
        self,
        memory: int | None = None,
        head: int | None = None,
        rows: slice | npt.NDArray[np.integer[Any]] | None = None,
        dtype: npt.DTypeLike = np.float64,
    ) -> Iterator[Block]:
        """Sequences in order, as many at a time as fit ``memory`` bytes (default 256 MiB, at least one).

        Block borders fall on chunk borders where a chunk fits, so that none is decoded twice.
        ``rows`` (strictly increasing) restricts the sequences.
        """
        self._outputs.check_head(head)
        for piece in self._pieces(memory or _DEFAULT_MEMORY, rows, np.dtype(dtype).itemsize):
            yield self.read(piece, head, dtype)

    def _pieces(
        self, memory: int, rows: slice | npt.NDArray[np.integer[Any]] | None, itemsize: int
    ) -> Iterator[slice | npt.NDArray[np.integer[Any]]]:
        x, y = self._inputs.field, self._outputs.field
        # Raw elements and their float copy are there at once; the comparison with NaN needs no copy.
        one = self.tokens * (
            self.dim * (itemsize + x.stored.raw.itemsize)
            + self.value_dim * (itemsize + y.stored.raw.itemsize)
        )
        size = max(1, memory // max(1, one))
        chunk = max(x.chunk_sequences, y.chunk_sequences)
        if chunk <= size:
            both = math.lcm(x.chunk_sequences, y.chunk_sequences)
            chunk = both if both <= size else chunk
            size -= size % chunk
        if rows is None or isinstance(rows, slice):
            start, stop, step = (rows or slice(None)).indices(self.sequences)
            if step == 1:
                while start < stop:
                    # The first block ends on a chunk border, and with it all others.
                    end = min(stop, start + size - (start % chunk if chunk <= size else 0))
                    yield slice(start, end)
                    start = end
                return
            rows = np.arange(start, stop, step)
        first = 0
        while first < len(rows):
            last = min(first + size, len(rows))
            if last < len(rows) and chunk <= size:
                border = int(np.searchsorted(rows, rows[last] // chunk * chunk))
                last = border if border > first else last
            yield rows[first:last]
            first = last

    def value_map(self, head: int | None = None) -> Floats | None:
        """V [d, d_v] of the head as float64, or None when the file has none.

        Stored as [d, d_v], or for heads as [H, d, d_h] or [d, H*d_h].
        """
        if self._value_map is None:
            return None
        self._outputs.check_head(head)
        return self._value_map.read(head)

    def teacher(self) -> dict[str, Any] | None:
        """The truth a generated file keeps under ``teacher`` (arrays and attributes by name), or None.

        For tests and comparisons; no estimator calls it.
        """
        found = locate(self._file, join(self.prefix, "teacher"), self.path)
        if found is None or not isinstance(found.obj, h5py.Group):
            return None
        out = read_attributes(found.obj)
        for name in children(found.obj, f"{self.path}::{found.path}"):
            at = join(found.path, name)
            member = locate(self._file, at, self.path)
            if member is not None and isinstance(member.obj, h5py.Dataset):
                shown = f"{self.path}::{at}"
                check_stored(member.obj, self._file, shown)
                out[name] = member.obj[()]
        return out
