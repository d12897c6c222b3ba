"""Results kept beside the data, under ``/<home>/<run>``; the file is never left worse than it was.

Estimates are at home in ``/estimates``, what training recovers in ``/recovery``, an experiment's cells in
``/cells``.

HDF5 changed in place cannot survive a kill, so a copy is changed and renamed over the file. Two processes
that save into one file wait for each other.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from rankprobe.data._atomic import reason, replacing
from rankprobe.data._open import children, detail, locate, open_file
from rankprobe.data._paths import check_file, join, split_path
from rankprobe.data._storage import check_stored
from rankprobe.data._write import opened_to_write
from rankprobe.errors import DataError, UsageError

try:
    import fcntl

    _CAN_LOCK = True
except ImportError:  # Windows: saves from several processes are not ordered there
    _CAN_LOCK = False


def save_results(
    path: str | os.PathLike[str],
    records: Sequence[Mapping[str, Any]],
    *,
    home: str = "estimates",
    run: str | None = None,
    replace: bool = False,
) -> str:
    """Append results to ``path`` under ``/<home>/<run>/<number>``; return the run's name.

    A file that does not exist is made. Whenever the process dies, ``path`` is the old file or the new one.
    The ``json`` dataset of a result holds all of it; its numbers, texts and lists of numbers are attributes
    and datasets too.

    Parameters
    ----------
    records : plain JSON objects; NaN and infinities are stored as null in ``json``.
    run : name of the run (default: the time in UTC); results of an existing run are added to.
    replace : start a new file in place of an existing one.

    Raises
    ------
    DataError
        ``path`` is not HDF5, is locked by a writer, or cannot be written.
    UsageError
        ``run`` is empty or holds a slash.
    """
    if run is not None and (not run or "/" in run or run == "."):
        raise UsageError(f"run {run!r}: must be a name without a slash")
    label, _ = split_path(path)
    if replace or not Path(label).exists():
        with replacing(label, force=replace) as temporary, opened_to_write(temporary, "w", label) as file:
            return _append(file, home, records, run, label)
    with _alone(label) as source:
        with replacing(label, force=True) as temporary:
            _copy(source, temporary, label)
            with opened_to_write(temporary, "r+", label) as file:
                name = _append(file, home, records, run, label)
        return name


def read_results(
    path: str | os.PathLike[str], run: str | None = None, *, home: str = "estimates"
) -> list[dict[str, Any]]:
    """Results saved under ``/<home>`` of ``path`` (of one run, or of all in order), as they were given.

    Raises :class:`DataError` when the file cannot be read or a result is damaged.
    """
    label, _ = split_path(path)
    out: list[dict[str, Any]] = []
    with open_file(label) as file:
        top = locate(file, join("/", home), label)
        runs = _members(top.obj, f"{label}::/{home}") if top is not None else []
        for one in runs if run is None else [run]:
            group = locate(file, join(home, one), label)
            if group is None or not isinstance(group.obj, h5py.Group):
                raise DataError(f"{label}::/{home}/{one}: no such run; there are {', '.join(runs) or 'none'}")
            for number in _members(group.obj, f"{label}::{group.path}"):
                at = join(group.path, number, "json")
                found = locate(file, at, label)
                try:
                    if found is None or not isinstance(found.obj, h5py.Dataset):
                        raise ValueError("no json")
                    check_stored(found.obj, file, f"{label}::{at}")
                    out.append(json.loads(found.obj[()]))
                except (OSError, RuntimeError, ValueError, TypeError) as error:
                    raise DataError(f"{label}::{at}: is not a saved result ({detail(error)})") from None
    return out


def _members(group: Any, label: str) -> list[str]:
    return sorted(children(group, label)) if isinstance(group, h5py.Group) else []


def _append(file: Any, home: str, records: Sequence[Mapping[str, Any]], run: str | None, label: str) -> str:
    try:
        runs = file.require_group(home)
        name, now = run, datetime.now(UTC)
        if name is None:
            stamp = name = now.strftime("%Y%m%dT%H%M%SZ")
            number = 1
            while name in runs:
                number += 1
                name = f"{stamp}-{number:03d}"
        group = runs.require_group(name)
        for number, record in enumerate(records, len(group)):
            _store(group.create_group(f"{number:06d}"), record)
            group[f"{number:06d}"].attrs["saved"] = now.isoformat(timespec="seconds")
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{label}: results cannot be added ({detail(error)}), the file is as it was; save with -o OTHER"
        ) from None
    return name


def _store(group: Any, record: Mapping[str, Any]) -> None:
    clean = _strict(record)
    group.create_dataset("json", data=json.dumps(clean, allow_nan=False), dtype=h5py.string_dtype())
    for name, value in clean.items():
        if isinstance(value, (bool, int, float, str)):
            # Attributes are small by design of HDF5; what does not fit is in json.
            with suppress(OSError, RuntimeError, ValueError, TypeError, OverflowError):
                group.attrs[name] = value
        elif _is_series(value) and "/" not in name and name != "json":
            group[name] = np.asarray(value)


def _is_series(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, (int, float)) for one in value)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _strict(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(one) for one in value]
    if isinstance(value, np.generic):
        return _strict(value.item())
    return value


@contextmanager
def _alone(path: str) -> Iterator[BinaryIO]:
    """``path`` opened for reading, while no other process saves into it."""
    check_file(path)
    while True:
        try:
            source = Path(path).open("r+b")  # noqa: SIM115  a record lock needs a writable handle
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({reason(error)}); save with -o OTHER.h5") from None
        with source:
            _lock(source, path)
            try:
                if os.path.samestat(os.fstat(source.fileno()), Path(path).stat()):
                    yield source
                    return
            except FileNotFoundError:
                raise DataError(f"{path}: was removed while waiting to save; save with -o OTHER.h5") from None
        # Another process has renamed its result over the file while we waited: take the new one.


def _lock(source: BinaryIO, path: str) -> None:
    if not _CAN_LOCK:
        return
    try:
        # Record locks order the savers; HDF5's own writers hold a flock, which is another kind of lock.
        fcntl.lockf(source, fcntl.LOCK_EX)
        fcntl.flock(source, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"{path}: is locked by a process that writes it; wait, or save with -o") from None
    except OSError:
        return  # a file system without locks


def _copy(source: BinaryIO, target: str, label: str) -> None:
    """All bytes of ``source``; shared instead of copied where the file system can."""
    try:
        with Path(target).open("r+b") as copy:
            left = os.fstat(source.fileno()).st_size
            if hasattr(os, "copy_file_range"):
                with suppress(OSError):
                    while left > 0:
                        done = os.copy_file_range(source.fileno(), copy.fileno(), left)
                        if done == 0:
                            break
                        left -= done
            if left > 0:
                source.seek(0)
                copy.seek(0)
                copy.truncate()
                shutil.copyfileobj(source, copy, 1 << 20)
    except OSError as error:
        raise DataError(f"{label}: cannot be written ({reason(error)}); save with -o OTHER.h5") from None
