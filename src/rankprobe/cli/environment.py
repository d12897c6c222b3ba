"""The process as the commands see it: three streams, whether they are terminals, variables.

Tests hand in another one; nothing else in the command line touches ``sys``.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from rankprobe.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """``text`` with its control characters escaped: names in files and of files come from strangers."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class ClosedOutputError(Exception):
    """Whoever read our standard output has left (``| head``): stop, quietly."""


class _NoBytes(io.RawIOBase):
    """Standard output of bytes that was closed before the start."""

    def write(self, data: Any, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class _NoStream(io.TextIOBase):
    """Stands in for a stream that was closed before the start (``>&-``)."""

    buffer = _NoBytes()

    def write(self, text: str, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class Environment:
    """Standard streams and variables of one run.

    Parameters
    ----------
    stdin, stdout, stderr : text streams (default: the process's own). ``stdin`` and ``stdout`` need a
        ``.buffer`` where a command reads or writes HDF5 on them.
    stdin_isatty, stdout_isatty, stderr_isatty : override what the streams say.
    variables : environment variables (default: ``os.environ``).
    """

    def __init__(
        self,
        *,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        stdin_isatty: bool | None = None,
        stdout_isatty: bool | None = None,
        stderr_isatty: bool | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.stdin: TextIO | None = stdin or sys.stdin
        self.stdout: TextIO = stdout or sys.stdout or _NoStream()  # type: ignore[assignment]
        self.stderr: TextIO = stderr or sys.stderr or _NoStream()  # type: ignore[assignment]
        self.stdin_isatty = _isatty(self.stdin) if stdin_isatty is None else stdin_isatty
        self.stdout_isatty = _isatty(self.stdout) if stdout_isatty is None else stdout_isatty
        self.stderr_isatty = _isatty(self.stderr) if stderr_isatty is None else stderr_isatty
        self.variables: Mapping[str, str] = os.environ if variables is None else variables
        self.argv: Sequence[str] = ()
        """The arguments of this run, without the program's name."""
        self.debug = False
        """Set by ``--debug``: errors come with their traceback."""
        for stream in (self.stdout, self.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                # A file name or a σ that the locale cannot encode must not cost the answer.
                stream.reconfigure(errors="backslashreplace")

    @property
    def dumb(self) -> bool:
        """Whether the terminal cannot move its cursor."""
        return self.variables.get("TERM", "") in ("dumb", "unknown")

    def write(self, text: str) -> None:
        """Write to standard output and flush.

        Raises ClosedOutputError when the reader has left, DataError when the stream cannot be written.
        """
        with self._writing():
            self.stdout.write(text)
            self.stdout.flush()

    @contextlib.contextmanager
    def binary_stdout(self) -> Iterator[BinaryIO]:
        """Standard output for bytes; errors as in :meth:`write`."""
        with self._writing():
            yield self.stdout.buffer
            self.stdout.buffer.flush()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.abandon_stdout()
            raise ClosedOutputError from None
        except OSError as error:
            self.abandon_stdout()
            raise DataError(f"cannot write to standard output: {error.strerror or error}") from error

    def abandon_stdout(self) -> None:
        """Let what is still buffered go nowhere, so that the interpreter's last flush is silent."""
        with contextlib.suppress(OSError, ValueError):
            descriptor = self.stdout.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)

    def note(self, line: str) -> None:
        """One line on standard error."""
        self.complain(f"rankprobe: {printable(' '.join(line.split()))}\n")

    def complain(self, text: str) -> None:
        """Text on standard error; there is nobody left to tell if that fails."""
        with contextlib.suppress(OSError, ValueError):
            self.stderr.write(text)
            self.stderr.flush()

    def console(self, *, stderr: bool = False) -> Console:
        """A rich console on standard output or error.

        Escape codes go to terminals only, whatever FORCE_COLOR or a CI's variables say; NO_COLOR and
        TERM=dumb take the colours away there too.
        """
        from rich.console import Console

        tty = self.stderr_isatty if stderr else self.stdout_isatty
        return Console(
            file=self.stderr if stderr else self.stdout,
            force_terminal=tty,
            force_interactive=tty and not self.dumb,
            color_system="auto" if tty and not self.dumb else None,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={k: v for k, v in self.variables.items() if k not in ("FORCE_COLOR", "TTY_COMPATIBLE")},
        )


def _isatty(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
