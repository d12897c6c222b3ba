"""``rankprobe inspect``: what a file holds, and the flags that read a pair from it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankprobe.cli.answer import label
from rankprobe.cli.environment import ClosedOutputError, Environment
from rankprobe.cli.exit_codes import ExitCode, worst
from rankprobe.cli.failures import report
from rankprobe.cli.options import DebugOption, ExternalOption, FormatOption, environment
from rankprobe.cli.output import Column, Record, Sink, short
from rankprobe.errors import DataError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rankprobe.data import FileDescription, PairDescription


def _size(value: Any) -> str:
    if value is None:
        return short(None)
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if amount == int(amount) else f"{amount:.1f} {units[0]}"


def _pairs_of(value: Any) -> str:
    return ", ".join(f"{name}={short(one)}" for name, one in value.items())


_BESIDE = 8
"""Other files in which the Y of a file without one is looked for."""

COLUMNS = (
    Column("file", rank=1),
    Column("dataset"),
    Column("shape"),
    Column("dtype"),
    Column("storage", rank=3),
    Column("size", _size, rank=2, right=True),
    Column("attributes", _pairs_of, rank=5),
    Column("role"),
    Column("flags", rank=6),
    Column("problem", rank=7),
)


def inspect(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="HDF5 files; FILE::/group for a group of one, - for standard input."
        ),
    ],
    allow_external: ExternalOption = False,
    format_: FormatOption = "auto",
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print only the arguments for estimate, a line for each pair."),
    ] = False,
    debug: DebugOption = False,
) -> int:
    """Show what files hold, and the flags that read (X, Y) pairs from them.

    Each row is a dataset: its shape, type, storage and attributes; `role` and `flags` say what it may be
    and how estimate is told so. Names other than X and Y are proposals by name and shape: check them. Where
    a file holds no pair, Y is looked for in the others. No values are read. Estimates and recoveries that
    were saved in the file follow, each with its rank, status and time.

    \b
    Examples:
      rankprobe inspect acts.h5
      rankprobe inspect acts.h5::/layer_3
      rankprobe inspect --format json acts.h5 | jq -r '.results[].pairs[].command'
      rankprobe inspect -q acts.h5 | xargs -L1 rankprobe estimate
    """
    env = environment(context)
    stdin = [file for file in files if file.split("::")[0] == "-"]
    if len(stdin) > 1:
        raise UsageError("standard input can be read once only; name - once")
    if stdin and env.stdin_isatty:
        raise UsageError("- reads a file from standard input, which is a terminal; pipe one or name a file")
    codes: list[ExitCode] = []
    sink = Sink(env, COLUMNS, format_=format_, quiet="arguments" if quiet else None, rows=_rows, panel=_panel)
    with sink:
        for file in files:
            try:
                others = [other for other in files if other != file and other not in stdin]
                record = _record(file, _describe(env, file, others[:_BESIDE], allow_external))
                if not quiet:
                    sink.add(record)
                elif not record["pairs"]:
                    raise DataError(f"{file}: no pair is in sight; name one with --x and --y")
                else:
                    for pair in record["pairs"]:
                        sink.add({"arguments": pair["arguments"]})
            except ClosedOutputError:
                raise
            except Exception as error:
                codes.append(report(env, error))
    return worst(codes)


def _describe(env: Environment, file: str, others: list[str], allow_external: bool) -> FileDescription:
    from rankprobe.data import describe

    stream = None
    if file.split("::")[0] == "-":
        if env.stdin is None:
            raise DataError("-: standard input is closed; pipe a file or name one")
        stream = env.stdin.buffer
    return describe(file, beside=others, allow_external=allow_external, stream=stream)


def _record(file: str, found: FileDescription) -> dict[str, Any]:
    """The description as plain JSON types."""
    datasets = [
        {("dataset" if key == "path" else key): value for key, value in dataclasses.asdict(one).items()}
        for one in found.datasets
    ]
    return {
        "file": file,
        "size": found.size,
        "attributes": found.attributes,
        "pairs": [_pair(pair) for pair in found.pairs],
        "datasets": datasets,
        "groups": [{"group": path, "attributes": attributes} for path, attributes in found.groups],
        "runs": list(found.runs),
        "estimates": [dataclasses.asdict(one) for one in found.estimates],
        "recoveries": [dataclasses.asdict(one) for one in found.recoveries],
        "problems": list(found.problems),
        "truncated": found.truncated,
    }


def _pair(pair: PairDescription) -> dict[str, Any]:
    way = pair.proposal
    return {
        "command": way.command,
        "arguments": way.arguments,
        "target": way.target,
        "flags": list(way.flags),
        "reason": way.reason,
        "sequences": pair.sequences,
        "tokens": pair.tokens,
        "dim": pair.dim,
        "value_dim": pair.value_dim,
        "heads": pair.heads,
        "problem": pair.problem,
        "asks": way.asks,
    }


def _rows(record: Record) -> Iterator[Record]:
    """One row a dataset, and one a saved result."""
    for one in record["datasets"]:
        storage = [one["storage"]]
        if one["chunks"] is not None:
            storage[0] += f" {list(one['chunks'])}"
        yield {
            **one,
            "file": record["file"],
            "shape": list(one["shape"]) if one["shape"] is not None else None,
            "storage": ", ".join([*storage, *one["filters"]]),
            "size": one["stored_bytes"],
            "flags": shlex.join(one["flags"]) or None,
        }
    for role, found in (("estimate", record["estimates"]), ("recovery", record["recoveries"])):
        for one in found:
            noted = {name: value for name, value in one.items() if name != "path" and value is not None}
            yield {"file": record["file"], "dataset": one["path"], "role": role, "attributes": noted}


def _saved(estimate: Record) -> str:
    """A saved result in one line."""
    of = None if estimate["file"] is None else label(estimate["file"], estimate["head"])
    rank = f"rank {short(estimate['rank'])}"
    facts = (rank, estimate["status"], estimate["estimator"], of, estimate["saved"])
    return f"{estimate['path']}: {', '.join(str(fact) for fact in facts if fact is not None)}"


def _panel(record: Record) -> RenderableType:
    """What a terminal shows below the table of a single file: attributes, the way to read it, troubles."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    lines = [f"{name} = {short(value)}" for name, value in record["attributes"].items()]
    for pair in record["pairs"][:8]:
        lines += ["", pair["command"], f"  {pair['problem'] or _sizes(pair)}"]
        if pair["flags"]:
            lines.append(f"  {pair['reason']}")
    if len(record["pairs"]) > 8:
        lines += ["", f"and {len(record['pairs']) - 8} more pairs: --format json lists all"]
    if not record["pairs"]:
        lines += ["", "no pair is in sight; name one with --x and --y"]
    problems = [f"{one['dataset']}: {one['problem']}" for one in record["datasets"] if one["problem"]]
    saved = [_saved(one) for one in record["estimates"] + record["recoveries"]]
    if len(saved) > 16:
        saved[16:] = [f"and {len(saved) - 16} more results: --format json lists all"]
    for more in (problems + record["problems"], saved):
        lines += ["", *more] if more else []
    if record["truncated"]:
        lines += ["", "the file holds more than is listed here"]
    # Text, not str: rich would take [n, T, d] for markup.
    return Panel(
        Group(*map(Text, lines[1:] if lines[0] == "" else lines)), title="to read it", title_align="left"
    )


def _sizes(pair: Record) -> str:
    if pair["sequences"] is None:
        return f"fill in {pair['asks']}"
    heads = "" if pair["heads"] is None else f", {pair['heads']} heads"
    return (
        f"{pair['sequences']} sequences of {pair['tokens']} tokens, d = {pair['dim']}, "
        f"d_v = {pair['value_dim']}{heads}"
    )
