"""Is a dataset's content really there? Checked before anything of its declared size is allocated.

HDF5 reads chunks that were never written, and virtual datasets whose source is gone, as fill values:
silent zeros. A file of one kilobyte may declare terabytes.
"""

from __future__ import annotations

import errno
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rankprobe.data._open import decode, detail
from rankprobe.data._virtual import Trail, check_virtual
from rankprobe.errors import DataError, MissingDependencyError

_FILTERS = {
    307: "bzip2", 32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp",
    32015: "zstd", 32017: "sz", 32018: "fcidecomp", 32019: "jpeg", 32020: "vbz", 32024: "sz3",
    32026: "blosc2", 32028: "sperr",
}  # fmt: skip
_BUILT_IN = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset"}

_DEFLATE_RATIO = 1100
"""deflate cannot shrink bytes by more than about 1032: a chunk that claims more is forged or damaged."""


_SMALL = 1 << 20
"""Bytes that may well be zeros a file system does not keep."""


def filters(dset: Any) -> list[str]:
    """Names of a dataset's filters in the order they were applied."""
    plist = dset.id.get_create_plist()
    out = []
    for i in range(plist.get_nfilters()):
        code, _, _, name = plist.get_filter(i)
        known = _BUILT_IN.get(code) or _FILTERS.get(code)
        out.append(known or decode(name).split(";")[0].strip() or f"filter {code}")
    return out


def element_bytes(dset: Any) -> int:
    """Bytes of one stored element; numpy's type may be wider."""
    return int(dset.id.get_type().get_size())


def layout(dset: Any) -> str:
    """``contiguous``, ``chunked``, ``compact``, ``virtual`` or ``external``."""
    plist = dset.id.get_create_plist()
    if plist.get_external_count():
        return "external"
    kinds = {
        h5py.h5d.COMPACT: "compact",
        h5py.h5d.CONTIGUOUS: "contiguous",
        h5py.h5d.CHUNKED: "chunked",
        h5py.h5d.VIRTUAL: "virtual",
    }
    return kinds.get(plist.get_layout(), "unknown")


def check_stored(
    dset: Any, file: Any, label: str, *, allow_external: bool = False, trail: Trail | None = None
) -> None:
    """Raise unless every declared element of ``dset`` is stored and can be decoded.

    ``file`` is the open file it was found in, ``label`` its name in messages; ``trail``
    is that of the virtual datasets which led here.

    Raises
    ------
    DataError
        elements never written, fewer bytes than declared, external or virtual storage not allowed.
    MissingDependencyError
        a filter plug-in is not installed.
    """
    try:
        shape = dset.shape
        kind = layout(dset)
        if shape is None:
            raise DataError(f"{label}: is an empty (null) dataset; name another")
        if kind == "external":
            _check_external(dset, label, allow_external)
            return
        if kind == "virtual":
            check = partial(check_stored, allow_external=allow_external)
            check_virtual(dset, file, label, allow_external, trail or (0, set()), check)
            return
        count = math.prod(shape)
        if count == 0:
            return
        if kind == "chunked":
            _check_filters(dset, label)
            _check_chunks(dset, label)
        else:
            _check_bytes(dset, label, count * element_bytes(dset), kind)
    except (OSError, RuntimeError, ValueError, OverflowError, KeyError) as error:
        raise DataError(
            f"{label}: its storage cannot be read ({detail(error)}); the file is damaged"
        ) from None


def _check_bytes(dset: Any, label: str, need: int, kind: str) -> None:
    have = dset.id.get_storage_size()
    if have == 0:
        raise DataError(f"{label}: was declared but never written; run the job that writes it to its end")
    if have < need:
        raise DataError(f"{label}: declares {need} bytes but stores {have}; write it again")
    offset = dset.id.get_offset()
    if kind == "contiguous" and offset is not None:
        end = Path(dset.file.filename).stat().st_size
        if offset + need > end:
            raise DataError(f"{label}: declares {need} bytes at {offset}, past the file's end; copy it again")
        # The first bytes may share a block with what lies before them.
        if need > _SMALL and _is_hole(dset.file.filename, offset + _SMALL // 2, offset + need):
            raise DataError(
                f"{label}: declares {need} bytes where the file has a hole; "
                "run the job that writes it to its end, or copy it again"
            )


def _is_hole(path: str, start: int, stop: int) -> bool:
    """Whether the file system keeps nothing between two offsets: it reads as zeros."""
    if not hasattr(os, "SEEK_DATA"):
        return False
    with Path(path).open("rb") as file:
        try:
            return os.lseek(file.fileno(), start, os.SEEK_DATA) >= stop
        except OSError as error:
            return error.errno == errno.ENXIO  # no data from there to the end


def _check_filters(dset: Any, label: str) -> None:
    plist = dset.id.get_create_plist()
    for i in range(plist.get_nfilters()):
        code = plist.get_filter(i)[0]
        if h5py.h5z.filter_avail(code):
            continue
        name = filters(dset)[i]
        try:
            import hdf5plugin  # noqa: F401  (registers its filters when imported)
        except ImportError:
            raise MissingDependencyError(
                f"{label}: is compressed with {name} (HDF5 filter {code}), which is not installed; "
                "run: pip install 'rankprobe[filters]'"
            ) from None
        if not h5py.h5z.filter_avail(code):
            raise MissingDependencyError(
                f"{label}: is compressed with {name} (HDF5 filter {code}), which hdf5plugin lacks; "
                "install that filter and set HDF5_PLUGIN_PATH, or rewrite the file with h5repack -f GZIP=4"
            )


def _check_chunks(dset: Any, label: str) -> None:
    plist = dset.id.get_create_plist()
    grid = [-(-size // chunk) for size, chunk in zip(dset.shape, dset.chunks, strict=True)]
    expected, written = math.prod(grid), dset.id.get_num_chunks()
    if written < expected:
        raise DataError(
            f"{label}: {expected - written} of {expected} chunks were never written"
            f"{_first_gap(dset, written)}; the job that writes it stopped early: "
            "finish it, or copy the rows that are there"
        )
    chunk_bytes = math.prod(dset.chunks) * element_bytes(dset)
    have, need = dset.id.get_storage_size(), expected * chunk_bytes
    codes = {plist.get_filter(i)[0] for i in range(plist.get_nfilters())}
    floor = need if not codes else need // _DEFLATE_RATIO if codes <= {1, 2, 3} else 0
    # Edge chunks may be stored unfiltered or partial; the bound only has to catch forgeries.
    if have < floor // 2:
        raise DataError(f"{label}: declares {need} bytes but stores {have}; write it again")


def _first_gap(dset: Any, written: int) -> str:
    """`` (first at row 1024)``, when that is cheap to find."""
    if not 0 < written <= 200_000:
        return ""
    rows, chunk = dset.shape[0], dset.chunks[0]
    across = math.prod(-(-size // piece) for size, piece in zip(dset.shape[1:], dset.chunks[1:], strict=True))
    if rows // chunk > 10_000_000:
        return ""
    full = np.zeros(-(-rows // chunk), dtype=np.int64)

    def seen(info: Any) -> None:
        full[info.chunk_offset[0] // chunk] += 1

    dset.id.chunk_iter(seen)
    return f" (first at row {int(np.argmax(full < across)) * chunk})"


def _check_external(dset: Any, label: str, allowed: bool) -> None:
    plist = dset.id.get_create_plist()
    pieces = [plist.get_external(i) for i in range(plist.get_external_count())]
    name = os.fsdecode(pieces[0][0])
    if not allowed:
        raise DataError(
            f"{label}: is stored in another file ({name}); pass --allow-external if you trust the file"
        )
    need = math.prod(dset.shape) * element_bytes(dset)
    have = 0
    for raw, offset, size in pieces:
        # HDF5 looks up relative names from the working directory.
        source = Path(os.fsdecode(raw))
        if not source.is_file():
            raise DataError(f"{label}: is stored in {source}, which is not there; fetch it or run beside it")
        left = max(0, source.stat().st_size - offset)
        have += left if size == h5py.h5s.UNLIMITED else min(size, left)
    if have < need:
        raise DataError(f"{label}: declares {need} bytes but {name} holds {have}; write it again")
