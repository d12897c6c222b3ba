"""Datasets as what they stand for: inputs [n, T, d], outputs [n, T, d_v] of a head, a padding mask.

The layouts writers choose (flattened tokens, a head axis before or after the tokens, heads side by side)
end here; above, every pair has the shapes of the documented schema.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from rankprobe.data._open import Located
from rankprobe.data._rows import Box, Rows, read_rows
from rankprobe.data._values import Floats, Stored
from rankprobe.errors import DataError, UsageError

_PLAIN_CACHE = 8 << 20
_MAX_CACHE = 256 << 20


class Field(ABC):
    """Numbers whose leading axis runs over sequences, or over the tokens of all sequences in turn.

    ``shape`` is that of all of them. Where sequences differ in length it is that of the longest, ``sizes``
    [n, axes] holds the extents of each (else None), and what lies beyond them is read as zeros.
    """

    def __init__(
        self,
        label: str,
        kind: Stored,
        shape: tuple[int, ...],
        chunks: tuple[int, ...] | None = None,
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.label = label
        self.stored = kind
        self.shape = shape
        self.chunks = chunks
        self.sizes = sizes
        self.per = 1
        """Stored rows of one sequence: 1, or T where the tokens are flattened."""
        if 0 in self.shape:
            raise DataError(f"{label}: is empty, its shape is {list(self.shape)}; name another dataset")

    @property
    def sequences(self) -> int:
        return self.shape[0] // self.per

    @property
    def chunk_sequences(self) -> int:
        """Sequences that one chunk spans (1 for contiguous storage)."""
        return max(1, self.chunks[0] // self.per) if self.chunks else 1

    def flatten(self, tokens: int) -> None:
        """Take the leading axis for n*T tokens."""
        if self.shape[0] % tokens:
            raise DataError(
                f"{self.label}: {self.shape[0]} tokens are no multiple of {tokens}; "
                "pass the length of one sequence as --tokens"
            )
        self.per = tokens

    def extents(self, axis: int) -> npt.NDArray[np.int64]:
        """Extent of each sequence [n] along an axis of ``shape`` after the first."""
        if self.sizes is None:
            return np.full(self.sequences, self.shape[axis])
        return self.sizes[:, axis - 1]

    def place(self, index: list[int]) -> tuple[str, list[int]]:
        """The dataset that holds the element ``index`` of ``shape``, as messages name it, and where there."""
        return self.label, index

    def read(self, rows: Rows, box: Box) -> npt.NDArray[Any]:
        """Raw elements of the sequences: [m * per, *box]."""
        if self.per > 1:
            if isinstance(rows, slice):
                start, stop, _ = rows.indices(self.sequences)
                rows = slice(start * self.per, max(start, stop) * self.per)
            else:
                rows = (rows[:, None] * self.per + np.arange(self.per)).reshape(-1)
        return self._read(rows, box)

    @abstractmethod
    def _read(self, rows: Rows, box: Box) -> npt.NDArray[Any]:
        """Raw elements of stored rows."""

    def all(self) -> npt.NDArray[Any]:
        """Every raw element."""
        return self.read(slice(0, self.sequences), tuple((0, size) for size in self.shape[1:]))


class Plain(Field):
    """One dataset."""

    def __init__(self, found: Located, label: str, kind: Stored) -> None:
        super().__init__(label, kind, tuple(found.obj.shape), found.obj.chunks)
        self._dset, self._together = _opened(found)

    def _read(self, rows: Rows, box: Box) -> npt.NDArray[Any]:
        return read_rows(
            self._dset, rows, box, self.stored.raw, self.stored.memory, self.label, self._together
        )


def _opened(found: Located) -> tuple[Any, int | None]:
    """The dataset with a chunk cache that suits it, and how many rows are best read together (None: any).

    Filtered chunks: a row of them is kept, so that none is decoded twice. Plain chunks of whole rows: no
    cache, for then HDF5 reads the rows asked for and not the chunks they lie in.
    """
    dset = found.obj
    if not dset.chunks:
        return dset, None
    if dset.id.get_create_plist().get_nfilters() == 0:
        whole = tuple(dset.chunks[1:]) == tuple(dset.shape[1:])
        return (found.reopen(0), None) if whole else (dset, dset.chunks[0])
    across = 1
    for size, piece in zip(dset.shape[1:], dset.chunks[1:], strict=True):
        across *= -(-size // piece) * piece
    need = int(across * dset.chunks[0] * dset.dtype.itemsize)
    if _PLAIN_CACHE < need <= _MAX_CACHE:
        dset = found.reopen(need)
    return dset, dset.chunks[0]


def _shapes(field: Field) -> str:
    return f"{field.label}: shape {list(field.shape)}"


class Inputs:
    """X: tokens [n, T, d], stored so or flattened to [n*T, d].

    ``lengths`` [n] are those of the sequences where they differ, else None.
    """

    def __init__(self, field: Field, tokens: int | None) -> None:
        self.field = field
        if len(field.shape) == 2 and tokens is None:
            raise DataError(
                f"{_shapes(field)} is flattened or one sequence; pass --tokens with the length of a sequence"
            )
        if len(field.shape) == 2 and tokens is not None:
            field.flatten(tokens)
            self.tokens = tokens
        elif len(field.shape) == 3:
            self.tokens = field.shape[1]
            if tokens not in (None, self.tokens):
                raise DataError(
                    f"{_shapes(field)} has {self.tokens} tokens a sequence; drop --tokens {tokens}"
                )
        else:
            raise DataError(f"{_shapes(field)} is not [n, T, d]; name the inputs with --x")
        self.sequences = field.sequences
        self.dim = field.shape[-1]
        self.lengths = None if field.sizes is None else field.extents(1)
        _same_width(field, len(field.shape) - 1)

    def read(self, rows: Rows, dtype: npt.DTypeLike) -> Floats:
        """[m, T, d] as ``dtype``."""
        raw = self.field.read(rows, tuple((0, size) for size in self.field.shape[1:]))
        return self.field.stored.convert(raw, dtype).reshape(-1, self.tokens, self.dim)

    def place(self, sequence: int, token: int, feature: int) -> tuple[str, list[int]]:
        """Dataset and index in it of one value."""
        if len(self.field.shape) == 2:
            return self.field.place([sequence * self.field.per + token, feature])
        return self.field.place([sequence, token, feature])


class Outputs:
    """Y: [n, T, d_v], or one head at a time of [n, H, T, d_h], [n, T, H, d_h] or [n, T, H*d_h].

    The head axis is known by the place of T; where H = T as well, the documented [n, H, T, d_h] holds.
    """

    def __init__(self, field: Field, inputs: Inputs, heads: int | None) -> None:
        self.field = field
        self._tokens = tokens = inputs.tokens
        shape = field.shape
        against = f"does not fit {inputs.field.label} {list(inputs.field.shape)}"
        flat = len(shape) == 2 or (len(shape) == 3 and tokens > 1 and shape[0] == inputs.sequences * tokens)
        if flat:
            if shape[0] != inputs.sequences * tokens:
                raise DataError(f"{_shapes(field)} {against}; name the outputs [n, T, d_v] with --y")
            field.flatten(tokens)
        elif len(shape) not in (3, 4):
            raise DataError(
                f"{_shapes(field)} is not [n, T, d_v] or [n, H, T, d_h]; name the outputs with --y"
            )
        if field.sequences != inputs.sequences:
            raise DataError(
                f"{_shapes(field)} {against}: {field.sequences} against {inputs.sequences} sequences; "
                "name matching datasets with --x and --y"
            )
        self._head_axis: int | None = None
        middle = shape[1:-1]
        if (flat and len(middle) == 1) or (len(middle) == 2 and middle[1] == tokens):
            self._head_axis = 1
        elif len(middle) == 2 and middle[0] == tokens:
            self._head_axis = 2
        elif not flat and middle != (tokens,):
            have = " or ".join(str(size) for size in middle)
            raise DataError(
                f"{_shapes(field)} {against}: {have} against {tokens} tokens; "
                "name matching datasets with --x and --y"
            )
        self.heads: int | None = None if self._head_axis is None else shape[self._head_axis]
        self.value_dim = shape[-1]
        if not flat:
            _same_lengths(field, 2 if self._head_axis == 1 else 1, inputs)
        _same_width(field, len(shape) - 1)
        if self._head_axis is not None:
            _same_width(field, self._head_axis)
        self.merged = False
        if heads is not None and self.heads is None:
            if shape[-1] % heads:
                raise DataError(
                    f"{_shapes(field)}: {shape[-1]} features do not split into --heads {heads}; "
                    "pass the number of heads side by side in Y"
                )
            self.heads, self.value_dim, self.merged = heads, shape[-1] // heads, True
        elif heads not in (None, self.heads):
            raise DataError(f"{_shapes(field)} has {self.heads} heads; drop --heads {heads}")

    def check_head(self, head: int | None) -> None:
        """Raise :class:`UsageError` unless ``head`` names a head, or is None where there is no head axis."""
        if self.heads is None:
            if head is not None:
                raise UsageError(f"{_shapes(self.field)} has no head axis; drop --head {head}")
        elif head is None:
            raise UsageError(f"{_shapes(self.field)} holds {self.heads} heads; choose with --head")
        elif not 0 <= head < self.heads:
            raise UsageError(f"{_shapes(self.field)} has no head {head}; --head takes 0 to {self.heads - 1}")

    def read(self, rows: Rows, head: int | None, dtype: npt.DTypeLike) -> Floats:
        """[m, T, d_v] of one head as ``dtype``."""
        box = [(0, size) for size in self.field.shape[1:]]
        if head is not None and self.merged:
            box[-1] = (head * self.value_dim, (head + 1) * self.value_dim)
        elif head is not None and self._head_axis is not None:
            box[self._head_axis - 1] = (head, head + 1)
        raw = self.field.read(rows, tuple(box))
        return self.field.stored.convert(raw, dtype).reshape(-1, self._tokens, self.value_dim)

    def place(self, sequence: int, token: int, feature: int, head: int | None) -> tuple[str, list[int]]:
        """Dataset and index in it of one value."""
        if head is not None and self.merged:
            feature += head * self.value_dim
        at = [sequence * self.field.per + token] if self.field.per > 1 else [sequence, token]
        if len(self.field.shape) == 2 and self.field.per == 1:
            at = [sequence]
        if head is not None and self._head_axis is not None:
            at.insert(self._head_axis, head)
        return self.field.place([*at, feature])


def _same_lengths(field: Field, axis: int, inputs: Inputs) -> None:
    """Raise unless every sequence has as many tokens here as in X."""
    have, want = field.extents(axis), inputs.field.extents(1) if inputs.lengths is not None else inputs.tokens
    wrong = np.flatnonzero(have != want)
    if wrong.size:
        first = int(wrong[0])
        tokens = inputs.tokens if inputs.lengths is None else int(inputs.lengths[first])
        shown = field.place([first, *[0] * (len(field.shape) - 1)])[0]
        raise DataError(
            f"{shown}: sequence {first} has {int(have[first])} tokens here and {tokens} in "
            f"{inputs.field.label}; name matching datasets with --x and --y"
        )


def _same_width(field: Field, axis: int) -> None:
    """Raise unless all sequences are equally wide along the axis."""
    have = field.extents(axis)
    wrong = np.flatnonzero(have != field.shape[axis])
    if wrong.size:
        first = int(wrong[0])
        shown = field.place([first, *[0] * (len(field.shape) - 1)])[0]
        raise DataError(
            f"{shown}: sequence {first} is {int(have[first])} wide where others are {field.shape[axis]}; "
            "name datasets of one width"
        )


class Padding:
    """Which tokens are real: those within the length of their sequence, and true in the mask if there is one.

    The mask holds [n, T] of true/false or 1/0, true at real tokens; stored so or flattened to [n*T].
    """

    def __init__(self, field: Field | None, inputs: Inputs) -> None:
        self.field = field
        self._tokens, self._lengths = inputs.tokens, inputs.lengths
        if field is None:
            return
        want = (inputs.sequences, inputs.tokens)
        if len(field.shape) == 1:
            field.flatten(inputs.tokens)
        have = (field.sequences, *(field.shape[1:] or (inputs.tokens,)))
        if have != want:
            raise DataError(f"{_shapes(field)} is not [n, T] = {list(want)}; name the mask with --mask")

    def read(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """[m, T], true at real tokens; values other than 0 and 1 raise :class:`DataError`."""
        real = None if self.field is None else self._mask(self.field, rows)
        if self._lengths is None and real is not None:
            return real
        lengths = np.asarray(self._lengths)[rows]
        within: npt.NDArray[np.bool_] = np.arange(self._tokens) < lengths[:, None]
        return within if real is None else within & real

    def _mask(self, field: Field, rows: Rows) -> npt.NDArray[np.bool_]:
        raw = field.read(rows, tuple((0, size) for size in field.shape[1:]))
        values = raw.reshape(-1, self._tokens)
        if values.dtype.kind == "b":
            return values
        real: npt.NDArray[np.bool_] = np.equal(values, 1)
        wrong = ~real & (values != 0)
        if wrong.any():
            first = values[wrong][0]
            raise DataError(
                f"{field.label}: holds {first!s}, a mask holds 1 at real tokens and 0 at padding; "
                "convert it (an additive mask: mask == 0)"
            )
        return real
