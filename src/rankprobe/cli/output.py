"""The one sink for answers: a table for people; TSV, JSON, JSONL and bare values for programs.

A command hands over plain records one at a time; standard output gets nothing from anywhere else. Data
formats are written by hand, never through rich: no escape code, no truncation, strict JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rankprobe.cli.environment import Environment
from rankprobe.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
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
    """A TSV cell: floats by repr, true/false, nothing for None and non-finite numbers, lists as JSON."""
    value = strict(value)
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return json.dumps(value, allow_nan=False)


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
    narrow (highest first; 0 never leaves). ``table`` false: in TSV only.
    """

    name: str
    show: Callable[[Any], str] = short
    rank: int = 0
    right: bool = False
    table: bool = True


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
    ) -> None:
        if quiet is not None and format_ != "auto":
            raise UsageError(f"-q and --format {format_} exclude each other; pass one of them")
        self._env = env
        self._columns = columns
        self._quiet = quiet
        self._rows = rows
        self._panel = panel
        self._format = format_ if format_ != "auto" else "table" if env.stdout_isatty else "tsv"
        self._held: list[Record] = []
        self._headed = False

    def add(self, record: Record) -> None:
        """Take one record."""
        if self._quiet is not None:
            value = record.get(self._quiet)
            self._env.write(("NA" if value is None else full(value)) + "\n")
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
        columns = [column for column in self._columns if column.table]
        console = self._env.console()
        table = _table(columns, rows)
        hidden: list[str] = []
        if not self._env.stdout_isatty:
            console.width = max(console.width, _width(console, table, "maximum"))
        while _width(console, table, "minimum") > console.width and any(c.rank for c in columns):
            last = max(columns, key=lambda column: column.rank)
            hidden.append(last.name)
            columns = [column for column in columns if column is not last]
            table = _table(columns, rows)
        with console.capture() as capture:
            console.print(table)
            if hidden:
                console.print(f"not shown: {', '.join(hidden)} (widen the terminal, or --format tsv)")
            if self._panel is not None and len(self._held) == 1 and self._env.stdout_isatty:
                console.print(self._panel(self._held[0]))
        self._env.write(capture.get())


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(strict(value), allow_nan=False, indent=indent)


def _table(columns: Sequence[Column], rows: Iterable[Record]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        # Names break at their underscores; values only where nothing else helps.
        table.add_column(
            column.name.replace("_", " "),
            justify="right" if column.right else "left",
            overflow="fold",
            vertical="bottom",
        )
    for row in rows:
        table.add_row(*(column.show(row.get(column.name)) for column in columns))
    return table


def _width(console: Console, table: Table, which: Literal["minimum", "maximum"]) -> int:
    from rich.measure import Measurement

    measured = Measurement.get(console, console.options.update(max_width=10_000), table)
    return int(getattr(measured, which))
