"""Datasets as what they stand for: inputs [n, T, d], outputs [n, T, d_v] of a head, a padding mask.

The layouts writers choose (flattened tokens, a head axis before or after the tokens, heads side by side)
end here; above, every pair has the shapes of the documented schema.
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from rankprobe.data._open import Located
from rankprobe.data._rows import Box, Rows, read_rows
from rankprobe.data._values import Floats, Stored, stored
from rankprobe.errors import DataError, UsageError

_PLAIN_CACHE = 8 << 20
_MAX_CACHE = 256 << 20


class Field:
    """A dataset whose leading axis runs over sequences, or over the tokens of all sequences in turn."""

    def __init__(self, found: Located, label: str, kind: Stored) -> None:
        self.label = label
        self.stored = kind
        self.shape: tuple[int, ...] = tuple(found.obj.shape)
        self.chunks: tuple[int, ...] | None = found.obj.chunks
        self.per = 1
        """Stored rows of one sequence: 1, or T where the tokens are flattened."""
        self._dset, self._together = _opened(found)
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

    def read(self, rows: Rows, box: Box) -> npt.NDArray[Any]:
        """Raw elements of the sequences: [m * per, *box]."""
        if self.per > 1:
            if isinstance(rows, slice):
                start, stop, _ = rows.indices(self.sequences)
                rows = slice(start * self.per, max(start, stop) * self.per)
            else:
                rows = (rows[:, None] * self.per + np.arange(self.per)).reshape(-1)
        return read_rows(
            self._dset, rows, box, self.stored.raw, self.stored.memory, self.label, self._together
        )

    def all(self) -> npt.NDArray[Any]:
        """Every raw element."""
        return self.read(slice(0, self.sequences), tuple((0, size) for size in self.shape[1:]))


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


def open_field(found: Located, label: str, dtype: str | None) -> Field:
    """Field of a dataset of real numbers; raises :class:`DataError` for other types."""
    if not isinstance(found.obj, h5py.Dataset):
        raise DataError(f"{label}: is a group, not a dataset; name one inside it")
    return Field(found, label, stored(found.obj, label, dtype))


def _shapes(field: Field) -> str:
    return f"{field.label}: shape {list(field.shape)}"


class Inputs:
    """X: tokens [n, T, d], stored so or flattened to [n*T, d]."""

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

    def read(self, rows: Rows, dtype: npt.DTypeLike) -> Floats:
        """[m, T, d] as ``dtype``."""
        raw = self.field.read(rows, tuple((0, size) for size in self.field.shape[1:]))
        return self.field.stored.convert(raw, dtype).reshape(-1, self.tokens, self.dim)

    def place(self, sequence: int, token: int, feature: int) -> list[int]:
        """Index in the file of one value."""
        if self.field.per > 1:
            return [sequence * self.field.per + token, feature]
        return [sequence, token, feature][: len(self.field.shape)]


class Outputs:
    """Y: [n, T, d_v], or one head at a time of [n, H, T, d_h], [n, T, H, d_h] or [n, T, H*d_h].

    The head axis is known by the place of T; where H = T as well, the documented [n, H, T, d_h] holds.
    """

    def __init__(self, field: Field, inputs: Inputs, heads: int | None) -> None:
        self.field = field
        self._tokens = tokens = inputs.tokens
        shape = field.shape
        against = f"does not fit {inputs.field.label} {list(inputs.field.shape)}"
        flat = len(shape) == 2 or (len(shape) == 3 and inputs.field.per > 1 and shape[1] != tokens)
        if flat:
            if (
                inputs.field.per == 1
                and len(inputs.field.shape) == 3
                and shape[0] != inputs.sequences * tokens
            ):
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
        self.merged = False
        if heads is not None and self.heads is None:
            if shape[-1] % heads:
                raise DataError(f"{_shapes(field)}: {shape[-1]} features do not split into --heads {heads}")
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

    def place(self, sequence: int, token: int, feature: int, head: int | None) -> list[int]:
        """Index in the file of one value."""
        if head is not None and self.merged:
            feature += head * self.value_dim
        at = [sequence * self.field.per + token] if self.field.per > 1 else [sequence, token]
        if len(self.field.shape) == 2 and self.field.per == 1:
            at = [sequence]
        if head is not None and self._head_axis is not None:
            at.insert(self._head_axis, head)
        return [*at, feature]


class Padding:
    """The mask: [n, T] of true/false or 1/0, true at real tokens; stored so or flattened to [n*T]."""

    def __init__(self, field: Field, inputs: Inputs) -> None:
        self.field = field
        self._tokens = inputs.tokens
        want = (inputs.sequences, inputs.tokens)
        if len(field.shape) == 1:
            field.flatten(inputs.tokens)
        have = (field.sequences, *(field.shape[1:] or (inputs.tokens,)))
        if have != want:
            raise DataError(f"{_shapes(field)} is not [n, T] = {list(want)}; name the mask with --mask")

    def read(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """[m, T], true at real tokens; values other than 0 and 1 raise :class:`DataError`."""
        raw = self.field.read(rows, tuple((0, size) for size in self.field.shape[1:]))
        values = raw.reshape(-1, self._tokens)
        if values.dtype.kind == "b":
            return values
        real: npt.NDArray[np.bool_] = np.equal(values, 1)
        wrong = ~real & (values != 0)
        if wrong.any():
            first = values[wrong][0]
            raise DataError(
                f"{self.field.label}: holds {first!s}, a mask holds 1 at real tokens and 0 at padding; "
                "convert it (an additive mask: mask == 0)"
            )
        return real
