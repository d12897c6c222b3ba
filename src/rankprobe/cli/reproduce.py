"""``rankprobe reproduce``: the paper's tables, its values and ours side by side."""

# No annotations as strings here: Typer would evaluate those of a command three times a start.
import platform
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rankprobe.cli.curve import check_figure
from rankprobe.cli.exit_codes import ExitCode
from rankprobe.cli.options import DebugOption, FormatOption, environment
from rankprobe.cli.output import Column, Record, Sink, short
from rankprobe.cli.progress import Meter
from rankprobe.cli.training import ThreadsOption, threads

TableName = Literal["table1", "table2", "table3", "table4", "table5", "all"]


def _percent(value: Any) -> str:
    return short(None) if value is None else f"{value:+.1%}"


COLUMNS = (
    Column("table", unless="same"),
    Column("row"),
    Column("column"),
    Column("ours", right=True),
    Column("paper", right=True),
    Column("deviation", right=True, show=_percent),
    Column("note"),
    Column("reference", right=True),
    Column("reference_is", rank=1),
    Column("seeds", right=True, rank=2),
)
"""A row is one number of the paper's table; ``note`` is the footnote that explains a deviation."""


def reproduce(
    context: typer.Context,
    table: Annotated[
        TableName, typer.Argument(metavar="TABLE", show_default=False, help="table1 to table5, or all.")
    ],
    cells: Annotated[
        str,
        typer.Option("--cells", metavar="FILE", help="HDF5 file that keeps finished cells; none runs twice."),
    ] = "rankprobe-cells.h5",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sequences, steps and rows, one seed: to see that it runs.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the table (png, pdf, svg); with several, their names go before the ending.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --plot replace existing files.")] = False,
    threads_: ThreadsOption = None,
    format_: FormatOption = "auto",
    debug: DebugOption = False,
) -> int:
    """Rebuild tables of the paper (the Entropic Bound for Transformers) on fresh draws.

    Every number stands beside the paper's and beside one that does not depend on training: a closed form, or
    the best that was found. Deviations over 15 % carry a footnote with the evidence. Full tables take from
    minutes (1, 2, 4, 5) to an hour and a half of one core (3); what has stopped goes on where it was.

    \b
    Examples:
      rankprobe reproduce table1 --quick
      rankprobe reproduce table3 --cells table3.h5 --plot table3.pdf
      rankprobe reproduce all --format json > tables.json
    """
    env = environment(context)
    with threads(threads_) as used:
        from rankprobe.experiments.run import TABLES
        from rankprobe.experiments.run import reproduce as rebuilt

        names: list[str] = list(TABLES) if table == "all" else [table]
        figures = _figures(plot, names, force)
        sink = Sink(env, COLUMNS, format_=format_, rows=_rows, notes=_notes)
        with sink:
            for name in names:
                with Meter(env, name) as meter:
                    made = rebuilt(name, cells, quick=quick, progress=meter)
                sink.add({**made.to_dict(), **_provenance(env.argv, used)})
                if name in figures:
                    from rankprobe.data import replacing
                    from rankprobe.experiments.figures import save_table

                    with replacing(figures[name], force=force) as temporary:
                        save_table(made, temporary, Path(figures[name]).suffix[1:].lower())
    return ExitCode.OK


def _figures(plot: str | None, names: list[str], force: bool) -> dict[str, str]:
    """Where the figure of each table goes; refused now if it could not be written."""
    if plot is None:
        return {}
    path = Path(plot)
    out = {
        name: plot if len(names) == 1 else str(path.with_name(f"{path.stem}-{name}{path.suffix}"))
        for name in names
    }
    for one in out.values():
        check_figure(one, force=force)
    return out


def _provenance(argv: Any, used: int) -> Record:
    import numpy
    import torch

    import rankprobe

    return {
        "command": shlex.join(["rankprobe", *argv]),
        "threads": used,
        "versions": {
            "rankprobe": rankprobe.__version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "torch": torch.__version__,
        },
    }


def _rows(record: Record) -> Iterator[Record]:
    number = 0
    for entry in record["entries"]:
        number += entry["differs"]
        yield {
            **entry,
            "table": record["table"],
            "note": f"[{number}]" if entry["differs"] else "",
            "seeds": len(entry["values"]) or None,
        }


def _notes(record: Record) -> Iterator[str]:
    quick = ", quick" if record["quick"] else ""
    yield f"{record['table']}{quick}: {record['title']}. {record['cells']} cells, {record['seconds']:.0f} s."
    yield from record["footnotes"]
