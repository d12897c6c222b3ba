"""The one sink for answers: a table for people; TSV, JSON, JSONL and bare values for programs.

A command hands over plain records one at a time; standard output gets nothing from anywhere else. Data
formats are written by hand, never through rich: no escape code, no truncation, strict JSON.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rankprobe.cli.environment import Environment, printable
from rankprobe.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Format = Literal["auto", "table", "json", "jsonl", "tsv"]
Record = Mapping[str, Any]

SCHEMA_VERSION = 1


def short(value: Any) -> str:
    """A table cell: floats to four significant digits, yes/no, a dash for what is not there."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return full(value)


def full(value: Any) -> str:
    """A TSV cell: floats by repr, true/false, nothing for None and non-finite numbers, lists as JSON.

    Backslashes and control characters of texts are escaped: a cell stays on its line, and no file name
    reaches a terminal as an escape code.
    """
    if isinstance(value, str):
        return printable(value.replace("\\", "\\\\"))
    value = strict(value)
    return "" if value is None else json.dumps(value, allow_nan=False)


def strict(value: Any) -> Any:
    """``value`` in types that strict JSON has: NaN and infinities become null, array scalars numbers."""
    if isinstance(value, str):
        # A file name that is not UTF-8 reaches us with lone surrogates, which strict parsers refuse.
        return str(value).encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy and torch, without importing them
        return strict(value.tolist())
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [strict(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in JSON")


@dataclass(frozen=True)
class Column:
    """One column of the table and of TSV.

    ``name`` is the row's key and the TSV header. ``rank`` says what leaves first when a terminal is too
    narrow (highest first; 0 never leaves). TSV has every column; the table leaves out one whose values are
    all missing (``unless="empty"``) or all the same (``"same"``), or that is not for it (``"table"``).
    """

    name: str
    show: Callable[[Any], str] = short
    rank: int = 0
    right: bool = False
    unless: Literal["never", "empty", "same", "table"] = "never"

    def tells(self, rows: Iterable[Record]) -> bool:
        """Whether the table of these rows needs the column."""
        values = {str(row.get(self.name)) for row in rows}
        idle = {"same": len(values) <= 1, "empty": values <= {"None"}, "table": True}
        return not idle.get(self.unless, False)


class Sink:
    """Takes records, writes them in one format to standard output; a context manager.

    Parameters
    ----------
    format_ : ``auto`` is a table on a terminal, TSV otherwise. TSV, JSONL and quiet lines are written as the
        records come; a table or a JSON document when all are there. A run that ends in an exception
        writes no half document.
    quiet : the name of the one value printed a line (``-q``), or None. A missing value prints as NA.
    rows : splits a record into the rows of table and TSV (default: the record is the row).
    panel : what a terminal shows below the table when there is one record only.
    notes : lines on a record below the table otherwise.
    """

    def __init__(
        self,
        env: Environment,
        columns: Sequence[Column],
        *,
        format_: Format = "auto",
        quiet: str | None = None,
        rows: Callable[[Record], Iterable[Record]] = lambda record: (record,),
        panel: Callable[[Record], RenderableType] | None = None,
        notes: Callable[[Record], Iterable[str]] = lambda record: (),
    ) -> None:
        if quiet is not None and format_ != "auto":
            raise UsageError(f"-q and --format {format_} exclude each other; pass one of them")
        self._env = env
        self._columns = columns
        self._quiet = quiet
        self._rows = rows
        self._panel = panel
        self._notes = notes
        self._format = format_ if format_ != "auto" else "table" if env.stdout_isatty else "tsv"
        self._held: list[Record] = []
        self._headed = False

    def add(self, record: Record | None) -> None:
        """Take one record; None is one that is missing, and only quiet lines keep its place."""
        if self._quiet is not None:
            value = (record or {}).get(self._quiet)
            text = "NA" if value is None else value if isinstance(value, str) else full(value)
            self._env.write(text + "\n")
        elif record is None:
            return
        elif self._format == "jsonl":
            self._env.write(_json(record) + "\n")
        elif self._format == "tsv":
            self._write_header()
            for row in self._rows(record):
                self._env.write("\t".join(full(row.get(c.name)) for c in self._columns) + "\n")
        else:
            self._held.append(record)

    def close(self) -> None:
        """Write what waited for the last record."""
        if self._quiet is not None:
            return
        if self._format == "tsv":
            self._write_header()
        elif self._format == "json":
            self._env.write(_json({"schema_version": SCHEMA_VERSION, "results": self._held}, indent=2) + "\n")
        elif self._format == "table" and self._held:
            self._write_table()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def _write_header(self) -> None:
        if not self._headed:
            self._env.write("\t".join(column.name for column in self._columns) + "\n")
            self._headed = True

    def _write_table(self) -> None:
        rows = [row for record in self._held for row in self._rows(record)]
        console = self._env.console()
        # Only a screen has an edge.
        room = console.width if self._env.stdout_isatty else None
        columns, hidden = [column for column in self._columns if column.tells(rows)], []
        while (widths := _fit(columns, rows, room)) is None:
            least = max(columns, key=lambda column: column.rank)
            hidden.append(least.name)
            columns.remove(least)
        console.width = max(console.width, sum(widths) + _GAP * len(widths))
        with console.capture() as capture:
            console.print(_table(columns, widths, rows))
            if hidden:
                note = f"not shown: {', '.join(hidden)} (widen the terminal, or --format tsv)"
                console.print(textwrap.fill(note, console.width))
            if room is not None:
                console.width = room
            if self._panel is not None and len(self._held) == 1 and self._env.stdout_isatty:
                console.print(self._panel(self._held[0]))
            else:
                for line in (line for record in self._held for line in self._notes(record)):
                    console.print(printable(line), soft_wrap=room is None)
        self._env.write(capture.get())


_GAP = 3
"""Characters between two columns."""
_FOLD = 24
"""A longer cell may be folded to this width."""


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(strict(value), allow_nan=False, indent=indent)


def _fit(columns: Sequence[Column], rows: Sequence[Record], room: int | None) -> list[int] | None:
    """Widths of the columns within ``room`` characters (None: no limit); None when one has to leave.

    Whole cells and headers if they fit; else headers break between words and long cells are folded.
    """
    cells = [max([len(column.show(row.get(column.name))) for row in rows], default=0) for column in columns]
    whole = [max(cell, len(column.name)) for cell, column in zip(cells, columns, strict=True)]
    space = math.inf if room is None else room - _GAP * (len(columns) - 1)
    if sum(whole) <= space:
        return whole
    words = [max(len(word) for word in column.name.split("_")) for column in columns]
    widths = [max(word, min(cell, _FOLD)) for word, cell in zip(words, cells, strict=True)]
    if sum(widths) > space and any(column.rank for column in columns):
        return None
    for wanted in (cells, whole):
        for at, most in enumerate(wanted):
            widths[at] += int(min(max(0, most - widths[at]), max(0, space - sum(widths))))
    return widths


def _table(columns: Sequence[Column], widths: Sequence[int], rows: Iterable[Record]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.name.replace("_", " "),
            justify="right" if column.right else "left",
            overflow="fold",
            vertical="bottom",
            width=width,
        )
    for row in rows:
        table.add_row(*(column.show(row.get(column.name)) for column in columns))
    return table
