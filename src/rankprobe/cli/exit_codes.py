"""Exit codes of every command."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns; shell scripts rely on the numbers."""

    OK = 0
    """An answer was given."""
    INTERNAL = 1
    """A bug: something was raised that nobody foresaw."""
    USAGE = 2
    """The command line contradicts itself or the data's shape."""
    DATA = 3
    """A file, stream or array cannot be read, written or used."""
    UNUSABLE = 4
    """It ran, but the answer must not be acted on (not identifiable, misfit, not converged)."""
    MISSING_DEPENDENCY = 5
    """An optional dependency has to be installed first."""
    INTERRUPTED = 130
    """Ctrl-C."""


_WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.INTERNAL,
    ExitCode.MISSING_DEPENDENCY,
    ExitCode.USAGE,
    ExitCode.DATA,
    ExitCode.UNUSABLE,
    ExitCode.OK,
)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The one code of a run over several files: 1, 5, 2, 3, 4, 0, the first of these that occurred.

    What the caller must repair (the program, an installation, the command) comes before what one file
    holds, and a file that was not read before an answer that is not usable.
    """
    return min(codes, key=_WORST_FIRST.index, default=ExitCode.OK)
