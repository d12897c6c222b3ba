"""HDF5's heaps of rows and strings, looked at before HDF5 does: damage there makes it loop or eat memory."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

_MARK = b"GCOL\x01\0\0\0"
"""Signature, version and reserved bytes of a collection."""
_HEADER = 16
_LEAST = 4096
"""Bytes of the smallest collection."""
_WRAP = 1 << 64
_LARGEST = 256 << 20
"""Bytes of counts and addresses in one chunk: sixteen million rows."""


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


def row_counts(dset: Any) -> npt.NDArray[np.int64] | None:
    """How many numbers each row of a dataset [n] of rows of varying length claims; None if it cannot be told.

    HDF5 gives room for what a row claims before it looks whether it is there: a damaged count of four bytes
    can ask for gigabytes. It is read here from the elements as stored: count, address, number in the heap.
    """
    plist = dset.id.get_create_plist()
    element = int(dset.id.get_type().get_size())
    n = dset.shape[0]
    if plist.get_layout() == h5py.h5d.CONTIGUOUS and not plist.get_external_count():
        with Path(dset.file.filename).open("rb") as file:
            file.seek(dset.id.get_offset())
            stored = file.read(n * element)
    elif plist.get_layout() == h5py.h5d.CHUNKED:
        pieces = []
        for at in range(0, n, dset.chunks[0]):
            mask, content = dset.id.read_direct_chunk((at,))
            pieces.append(_decoded(mask, content, plist, element))
        if any(piece is None or len(piece) != dset.chunks[0] * element for piece in pieces):
            return None
        stored = b"".join(piece for piece in pieces if piece is not None)[: n * element]
    else:
        return None
    if len(stored) != n * element:
        return None
    words = np.frombuffer(stored, dtype=np.uint8).reshape(n, element)[:, :4]
    return np.ascontiguousarray(words).view("<u4")[:, 0].astype(np.int64)


def _decoded(mask: int, content: bytes, plist: Any, element: int) -> bytes | None:
    """A chunk without its filters, which are undone from the last; None where one is not known here."""
    for i in reversed(range(plist.get_nfilters())):
        code = plist.get_filter(i)[0]
        if mask >> i & 1:
            continue
        if code == h5py.h5z.FILTER_DEFLATE:
            content = zlib.decompressobj().decompress(content, _LARGEST)
        elif code == h5py.h5z.FILTER_SHUFFLE:
            planes = np.frombuffer(content, dtype=np.uint8)
            content = planes[: len(planes) // element * element].reshape(element, -1).T.tobytes()
        else:
            return None
    return content
