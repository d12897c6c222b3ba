"""Options that several commands share, and the small languages of their values."""

from __future__ import annotations

import re
from typing import Annotated

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
