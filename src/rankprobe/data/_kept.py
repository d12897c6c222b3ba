"""Other results kept as those of :func:`save_estimates` are: recoveries, and the cells of an experiment.

A record lies under ``/<home>/<run>/<number>``; the file is never left worse than it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h5py

from rankprobe.data._atomic import replacing
from rankprobe.data._open import detail, locate, open_file
from rankprobe.data._paths import join, split_path
from rankprobe.data._results import _alone, _copy, _members, _store
from rankprobe.data._storage import check_stored
from rankprobe.data._write import opened_to_write
from rankprobe.errors import DataError


def keep_records(
    path: str | os.PathLike[str], home: str, records: Sequence[Mapping[str, Any]], *, run: str | None = None
) -> str:
    """Append ``records`` under ``/<home>/<run>`` of ``path`` and return the run's name (default: the time).

    A file that does not exist is made. Whenever the process dies, ``path`` is the old file or the new one.

    Raises
    ------
    DataError
        ``path`` is not HDF5, is locked by a writer, or cannot be written.
    """
    label, _ = split_path(path)
    if not Path(label).exists():
        with replacing(label) as temporary, opened_to_write(temporary, "w", label) as file:
            return _append(file, home, records, run, label)
    with _alone(label) as source:
        with replacing(label, force=True) as temporary:
            _copy(source, temporary, label)
            with opened_to_write(temporary, "r+", label) as file:
                name = _append(file, home, records, run, label)
        return name


def read_records(path: str | os.PathLike[str], home: str) -> list[dict[str, Any]]:
    """All records under ``/<home>`` of ``path``, run by run, as they were given.

    Raises :class:`DataError` when the file cannot be read or a record is damaged.
    """
    label, _ = split_path(path)
    out: list[dict[str, Any]] = []
    with open_file(label) as file:
        found = locate(file, join("/", home), label)
        for run in _members(found.obj, f"{label}::/{home}") if found is not None else []:
            group = locate(file, join(home, run), label)
            numbers = [] if group is None else _members(group.obj, f"{label}::{group.path}")
            for number in numbers:
                at = join(home, run, number, "json")
                stored = locate(file, at, label)
                try:
                    if stored is None or not isinstance(stored.obj, h5py.Dataset):
                        raise ValueError("no json")
                    check_stored(stored.obj, file, f"{label}::{at}")
                    out.append(json.loads(stored.obj[()]))
                except (OSError, RuntimeError, ValueError, TypeError) as error:
                    raise DataError(f"{label}::{at}: is not a saved result ({detail(error)})") from None
    return out


def _append(file: Any, home: str, records: Sequence[Mapping[str, Any]], run: str | None, label: str) -> str:
    now = datetime.now(UTC)
    try:
        runs = file.require_group(home)
        stamp = name = run or now.strftime("%Y%m%dT%H%M%SZ")
        number = 1
        while run is None and name in runs:
            number += 1
            name = f"{stamp}-{number:03d}"
        group = runs.require_group(name)
        for index, record in enumerate(records, len(group)):
            _store(group.create_group(f"{index:06d}"), record)
            group[f"{index:06d}"].attrs["saved"] = now.isoformat(timespec="seconds")
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{label}: results cannot be added ({detail(error)}), the file is as it was; save elsewhere"
        ) from None
    return name
