"""A figure of a rebuilt table: a panel for every column of several rows, ours, the paper's, the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from rankprobe.experiments.table import Entry, Table
from rankprobe.figures import _STYLE, GUIDE, LIMIT, SIGNAL, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADES = 30.0
"""A column whose values span more than this is drawn on a logarithmic axis."""


def save_table(table: Table, path: str | PathLike[str], kind: str) -> None:
    """Draw ``table`` to ``path`` as ``png``, ``pdf`` or ``svg``; needs matplotlib."""
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    count = Counter(entry.column for entry in table.entries)
    columns = [column for column, rows in count.items() if rows > 1] or list(count)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.75, 0.4 + 2.0 * len(columns)), layout="constrained")
        panels = figure.subplots(len(columns), 1, squeeze=False)[:, 0]
        for axes, column in zip(panels, columns, strict=True):
            _column(axes, column, [entry for entry in table.entries if entry.column == column])
        panels[0].legend(fontsize=6)
        figure.suptitle(f"{table.name}: {table.title}" + (" (quick)" if table.quick else ""), fontsize=8)
        figure.savefig(path, format=kind)


def _column(axes: Axes, column: str, entries: Sequence[Entry]) -> None:
    at = range(len(entries))
    series = (
        ("reference", [entry.reference for entry in entries], "_", GUIDE, 14.0),
        ("paper", [entry.paper for entry in entries], "x", LIMIT, 5.0),
        ("ours", [entry.ours for entry in entries], "o", SIGNAL, 3.5),
    )
    for place, entry in zip(at, entries, strict=True):
        if len(entry.values) > 1:
            axes.plot([place] * 2, [min(entry.values), max(entry.values)], color=SIGNAL, linewidth=0.8)
    for name, values, marker, colour, size in series:
        there = [(place, value) for place, value in zip(at, values, strict=True) if value is not None]
        if there:
            axes.plot(*zip(*there, strict=True), marker, color=colour, markersize=size, label=name)
    known = [value for _, values, *_ in series for value in values if value is not None]
    if known and min(known) > 0 and max(known) > DECADES * min(known):
        axes.set_yscale("log")
    axes.set_xticks(list(at), [entry.row for entry in entries], rotation=20, ha="right", fontsize=6)
    axes.set_xlim(-0.5, len(entries) - 0.5)
    axes.set_ylabel(column)
