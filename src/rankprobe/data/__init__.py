"""Pair files: the only part of rankprobe that knows HDF5.

``open_pairs`` reads, ``write_pairs`` writes, ``save_results`` and ``read_results`` keep results beside
the data, ``describe`` says what a file holds. Importing this package loads neither h5py nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankprobe.data._atomic import replacing
    from rankprobe.data._describe import DatasetDescription, FileDescription, PairDescription, describe
    from rankprobe.data._pairs import PairFile, open_pairs
    from rankprobe.data._paths import split_path
    from rankprobe.data._results import read_results, save_results
    from rankprobe.data._write import write_pairs

_HOMES = {
    "DatasetDescription": "_describe",
    "FileDescription": "_describe",
    "PairDescription": "_describe",
    "describe": "_describe",
    "PairFile": "_pairs",
    "open_pairs": "_pairs",
    "read_results": "_results",
    "replacing": "_atomic",
    "save_results": "_results",
    "split_path": "_paths",
    "write_pairs": "_write",
}

__all__ = [
    "DatasetDescription",
    "FileDescription",
    "PairDescription",
    "PairFile",
    "describe",
    "open_pairs",
    "read_results",
    "replacing",
    "save_results",
    "split_path",
    "write_pairs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
