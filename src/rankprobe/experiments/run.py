"""Running a table: its cells one by one, those that the file already holds not again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import rankprobe
from rankprobe.data import read_results, save_results
from rankprobe.errors import UsageError
from rankprobe.experiments.table import Cell, Result, Table

TABLES = ("table1", "table2", "table3", "table4", "table5")

HOME = "cells"
"""Group of the HDF5 file under which finished cells lie, one run a table."""


def reproduce(
    name: str,
    path: str | None = None,
    *,
    quick: bool = False,
    progress: Callable[..., None] | None = None,
) -> Table:
    """Rebuild one of the paper's tables.

    Parameters
    ----------
    name : ``table1`` … ``table5``.
    path : HDF5 file of finished cells: they are taken from it, and every new one is added as it ends, so that
        whatever stops the process costs one cell. None keeps nothing.
    quick : fewer sequences, steps, rows and one seed, to see that it runs.
    progress : called as ``progress(done, total, text)`` in cells.

    Raises
    ------
    UsageError : there is no such table. DataError : the file cannot be read or written.
    """
    if name not in TABLES:
        raise UsageError(f"there is no {name!r}; choose from {', '.join(TABLES)}")
    module: Any = import_module(f"rankprobe.experiments.{name}")
    wanted: list[Cell] = [
        {"table": name, **cell, "version": rankprobe.__version__} for cell in module.cells(quick)
    ]
    known = _known(path)
    done: list[tuple[Cell, Result]] = []
    seconds = 0.0
    for number, cell in enumerate(wanted):
        kept = known.get(_key(cell))
        if kept is None:
            began = time.perf_counter()
            result = module.run(cell, _within(progress, number, len(wanted), cell))
            kept = {"cell": cell, "result": dict(result), "seconds": time.perf_counter() - began}
            # As a later process would read it: a resumed table is the same to the last digit.
            kept = json.loads(json.dumps(kept))
            if path is not None:
                save_results(path, [kept], home=HOME, run=name)
        done.append((cell, kept["result"]))
        seconds += kept["seconds"]
    notes = module.notes(done) if hasattr(module, "notes") else []
    if quick:
        notes = [*notes, "Quick: fewer sequences and steps, one seed; noise raises the learned ranks."]
    return Table(name, module.TITLE, quick, tuple(module.entries(done)), tuple(notes), seconds, len(wanted))


def _known(path: str | None) -> dict[str, dict[str, Any]]:
    if path is None or not Path(path).exists():
        return {}
    return {_key(record["cell"]): record for record in read_results(path, home=HOME) if "cell" in record}


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _within(
    progress: Callable[..., None] | None, number: int, count: int, cell: Cell
) -> Callable[..., None] | None:
    """Progress inside one cell as a part of the table's."""
    if progress is None:
        return None
    names = ("teacher", "spectrum", "rank", "seed", "part", "rung", "solver")
    where = ", ".join(f"{name} {cell[name]}" for name in names if name in cell)

    def report(done: float, total: float | None = None, text: str | None = None) -> None:
        progress(number + (done / total if total else 0.0), count, f"{where}: {text}")

    return report
