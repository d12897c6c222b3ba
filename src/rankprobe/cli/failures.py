"""One map from an exception to a line on standard error and an exit code."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from rankprobe.cli.environment import Environment
from rankprobe.cli.exit_codes import ExitCode
from rankprobe.errors import DataError, MissingDependencyError, RankprobeError, UsageError

if TYPE_CHECKING:
    from typer import TyperException

_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (UsageError, ExitCode.USAGE),
    (DataError, ExitCode.DATA),
    (MissingDependencyError, ExitCode.MISSING_DEPENDENCY),
    (RankprobeError, ExitCode.INTERNAL),
    (OSError, ExitCode.DATA),
)


def report(env: Environment, error: BaseException) -> ExitCode:
    """Write the line of ``error`` to standard error (``--debug``: after its traceback); return its code."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.INTERNAL)
    if env.debug:
        env.complain("".join(traceback.format_exception(error)))
    env.note(f"error: {_line(error, code, env)}")
    return code


def report_usage(env: Environment, error: TyperException) -> ExitCode:
    """Write the parser's complaint about the command line, with where to look."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rankprobe"
    # Values are validated by pydantic, whose prefix says nothing to the user.
    message = error.format_message().replace("Value error, ", "").rstrip().rstrip(".")
    env.note(f"error: {message[:1].lower()}{message[1:]}; see '{command} --help'")
    return ExitCode.USAGE


def _line(error: BaseException, code: ExitCode, env: Environment) -> str:
    if isinstance(error, RankprobeError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory; pass a smaller --memory"
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "" if env.debug else "; run again with --debug for the traceback"
    return f"internal error: {cause}{hint}"
