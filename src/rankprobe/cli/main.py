"""Entry point: the Typer application, and ``main``, the only place where errors become exit codes.

Importing this module must stay light (no numpy, scipy, h5py, torch): help and completion run through it.
Command bodies import what they need when they run.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Any

import typer

from rankprobe import __version__
from rankprobe.cli.environment import ClosedOutputError, Environment
from rankprobe.cli.exit_codes import ExitCode
from rankprobe.cli.failures import report, report_usage
from rankprobe.cli.options import environment

COMMANDS = (
    "estimate", "generate", "inspect", "train-recover", "sweep", "ladder", "reproduce", "compare",
    "schema",
)  # fmt: skip
"""Each is a function in a module of its name, with _ for -."""


def _version(context: typer.Context, value: bool) -> None:
    if value:
        environment(context).write(f"rankprobe {__version__}\n")
        raise typer.Exit


def rankprobe(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Estimate the intrinsic query-key rank of attention from inputs and outputs alone.

    Answers go to standard output, everything else to standard error. Exit codes: 0 answered, 1 internal
    error, 2 usage, 3 bad input, 4 the answer is not usable, 5 an optional dependency is missing,
    130 interrupted.
    """


def application(arguments: Sequence[str]) -> typer.Typer:
    """The Typer application with the command that ``arguments`` begin with.

    Loading and reading the signatures of all commands takes longer than most runs wait for anything else.
    Where none is named (help, completion, a name spelled wrong), all are there.
    """
    # Plain help: rich would read the [n, T, d] of a help text as markup, and pipes and tests read it as is.
    app = typer.Typer(
        name="rankprobe",
        callback=rankprobe,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in [name for name in COMMANDS if name in arguments[:1]] or COMMANDS:
        module = name.replace("-", "_")
        app.command(name)(getattr(import_module(f"rankprobe.cli.{module}"), module))
    return app


def program(arguments: Sequence[str], env: Environment) -> int:
    """Run one command; return its exit code. Every error escapes."""
    command = typer.main.get_command(application(arguments))
    with contextlib.redirect_stdout(env.stdout), contextlib.redirect_stderr(env.stderr):
        code = command.main(list(arguments), prog_name="rankprobe", standalone_mode=False, obj=env)
    return int(code or 0)


class _Interrupt(KeyboardInterrupt):
    """Ctrl-C, under another name than the built-in one."""


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Make Ctrl-C end in our exit code wherever it strikes.

    CPython notes a plain KeyboardInterrupt that passes through ``exec`` of a string (array-api-compat's
    imports do that) and later kills the process by the signal, although it was caught. A subclass goes
    unnoticed. What is raised in a weak reference's callback or in a destructor is lost (h5py has many of
    both), so it is raised again a moment later. An ignored or foreign handler is left alone.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise _Interrupt

    def lost(what: Any) -> None:
        if isinstance(what.exc_value, _Interrupt):
            threading.Timer(0.01, _thread.interrupt_main).start()
        else:
            told(what)

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    told, sys.unraisablehook = sys.unraisablehook, lost
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = told


def main(argv: Sequence[str] | None = None, env: Environment | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) in ``env``; return the exit code."""
    env = env or Environment()
    env.argv = tuple(sys.argv[1:] if argv is None else argv)
    try:
        with _interrupts():
            code = program(env.argv, env)
    except ClosedOutputError:
        return ExitCode.OK
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except SystemExit as stop:
        # The parser's own way out: completion scripts, and help that nobody reads to its end.
        if isinstance(stop.__context__, BrokenPipeError):
            env.abandon_stdout()
            return ExitCode.OK
        return stop.code if isinstance(stop.code, int) else ExitCode.INTERNAL
    except typer.TyperException as error:
        return report_usage(env, error)
    except Exception as error:
        return report(env, error)
    if code == ExitCode.INTERRUPTED:
        env.note("interrupted")
    return code
