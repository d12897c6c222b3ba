"""Damage to HDF5's global heaps (rows of varying length, strings) that makes HDF5 itself loop for ever."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_MARK = b"GCOL\x01\0\0\0"
"""Signature, version and reserved bytes of a collection."""
_HEADER = 16
_LEAST = 4096
"""Bytes of the smallest collection."""
_WRAP = 1 << 64


def endless_heap(path: str | os.PathLike[str], most: int | None = None) -> int | None:
    """Offset of the first heap collection whose objects lead HDF5 (2.0) round and round; None if all end.

    A collection is a row of objects, each with its size. HDF5 steps from one to the next without looking
    whether it moves on: a free space of no bytes keeps it where it is. Files of more than ``most`` bytes
    are not looked at.
    """
    size = Path(path).stat().st_size
    if size < _LEAST or (most is not None and size > most):
        return None
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(_MARK)
        while at >= 0:
            if _is_endless(content, at):
                return at
            at = content.find(_MARK, at + 1)
    return None


def _is_endless(content: mmap.mmap, at: int) -> bool:
    if at + _HEADER > len(content):
        return False
    (size,) = struct.unpack_from("<Q", content, at + 8)
    here, end = at + _HEADER, at + size
    if size < _LEAST or end > len(content):
        return False
    while here + _HEADER <= end:
        index, length = struct.unpack_from("<H6xQ", content, here)
        # Free space counts its own header, an object does not and is padded to eight bytes.
        step = length if index == 0 else (_HEADER + (length + 7) // 8 * 8) % _WRAP
        if step == 0 or step >= _WRAP // 2:  # nowhere, or back
            return True
        here += step
    return False
