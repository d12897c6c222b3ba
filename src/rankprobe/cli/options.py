"""Options that several commands share, and the small languages of their values."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import typer

from rankprobe.cli.environment import Environment
from rankprobe.cli.output import Format
from rankprobe.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def _debug(context: typer.Context, value: bool) -> bool:
    if value:
        environment(context).debug = True
    return value


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        help="How the answer is written to standard output; auto is a table on a terminal and TSV in a pipe.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the rank, one a line.")]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", callback=_debug, is_eager=True, help="Print the traceback of an error too."),
]

DtypeName = Literal["bfloat16", "integer"]
NanName = Literal["error", "skip"]

XOption = Annotated[
    str | None,
    typer.Option(
        "--x",
        metavar="NAME",
        show_default="X",
        help="Dataset of the tokens; 'seq_*/X' for one a sequence (or batch), OTHER.h5::/X in another file.",
    ),
]
YOption = Annotated[
    str | None,
    typer.Option("--y", metavar="NAME", show_default="Y", help="Dataset of the outputs, named like --x."),
]
VOption = Annotated[
    str | None,
    typer.Option("--v", metavar="NAME", help="Dataset of the value map, for v-known (/teacher/V is one)."),
]
MaskOption = Annotated[
    str | None, typer.Option("--mask", metavar="NAME", help="Dataset [n, T] that is true at real tokens.")
]
TokensOption = Annotated[
    int | None, typer.Option("--tokens", "-T", help="Tokens of a sequence where X is flattened to [n·T, d].")
]
HeadsOption = Annotated[
    int | None, typer.Option("--heads", help="Number of heads H where Y is [n, T, H·d_h].")
]
DimOption = Annotated[
    int | None, typer.Option("--dim", help="Features d of a token where X holds rows of varying length T·d.")
]
StoredOption = Annotated[
    DtypeName | None,
    typer.Option("--dtype", help="What two-byte integers are: bfloat16 bit patterns, or numbers."),
]
NanOption = Annotated[
    NanName, typer.Option("--nan", help="Refuse NaN and infinite values, or leave out their tokens.")
]
ExternalOption = Annotated[
    bool, typer.Option("--allow-external", help="Follow links and storage outside the file.")
]


def environment(context: typer.Context) -> Environment:
    """The environment ``main`` handed to the command."""
    env = context.obj
    return env if isinstance(env, Environment) else Environment()


def parse_size(text: str | None) -> int | None:
    """Bytes of ``512M``, ``2G``, ``1.5GiB`` or a plain number; K, M, G, T are powers of 1024."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " ")) if found else 0
    if size < 1:
        raise UsageError(f"--memory {text!r} is no size; write for example 512M or 2G")
    return size


def parse_heads(text: str | None) -> list[int] | None:
    """Head indices of ``0,3-5``, in the order given, each once; None for None."""
    if text is None:
        return None
    heads: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"--head {text!r} is no list of heads; write for example 0,3-5")
        heads += range(int(found[1]), int(found[2] or found[1]) + 1)
    return list(dict.fromkeys(heads))
