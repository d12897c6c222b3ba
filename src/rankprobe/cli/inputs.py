"""What every command that reads pair files does first: open the file, pick its heads, hold its threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankprobe.cli.environment import Environment
from rankprobe.errors import UsageError

if TYPE_CHECKING:
    from rankprobe.data import PairFile


def is_stdin(file: str) -> bool:
    """Whether ``file`` stands for standard input, with or without a group."""
    return file == "-" or (file.startswith("-::") and not Path(file).exists())


@contextlib.contextmanager
def opened(env: Environment, file: str, opening: Mapping[str, Any]) -> Iterator[PairFile]:
    """The pair file named on the command line, or on standard input; what it left unused is said."""
    from rankprobe.data import open_pairs

    stream = None
    if is_stdin(file):
        if env.stdin is None or env.stdin_isatty:
            what = "is closed" if env.stdin is None else "is a terminal"
            raise UsageError(
                f"- reads a pair file from standard input, which {what}; pipe one or name a file"
            )
        stream = env.stdin.buffer
    with open_pairs(file, stream=stream, **opening) as pairs:
        for line in pairs.notes:
            env.note(line)
        yield pairs


def heads_of(pairs: PairFile, wanted: list[int] | None, file: str) -> list[int] | list[None]:
    """The heads asked for; [None] where Y has no axis for them."""
    if pairs.heads is None:
        if wanted is not None:
            raise UsageError(f"{file}: Y has no axis for heads; leave out --head, or pass --heads H")
        return [None]
    heads = list(range(pairs.heads)) if wanted is None else wanted
    if max(heads) >= pairs.heads:
        raise UsageError(f"{file}: there is no head {max(heads)}; Y holds heads 0 to {pairs.heads - 1}")
    return heads


@contextlib.contextmanager
def held_threads(limit: int | None) -> Iterator[int]:
    """Hold the linear algebra to ``limit`` threads; yields how many it may use."""
    import numpy  # noqa: F401  loads the library whose threads are counted
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController()
    with controller.limit(limits=limit):
        yield max((pool["num_threads"] for pool in controller.info()), default=1)
