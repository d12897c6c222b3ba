"""Progress bars: on standard error, on a terminal, for what takes longer than a moment."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rankprobe.cli.environment import Environment

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE = 1.0
"""Seconds of work before a bar appears: what ends sooner should not flicker."""


class Meter:
    """One bar: :meth:`advance` it, or call it with how much is done of how much.

    Does nothing where standard error is no terminal or cannot move its cursor (TERM=dumb), and leaves nothing
    behind on the screen.
    """

    def __init__(self, env: Environment, text: str, total: float | None = None) -> None:
        self._env = env
        self._text = text
        self._total = total
        self._done = 0.0
        self._shown = env.stderr_isatty and not env.dumb
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: float, total: float | None = None, text: str | None = None) -> None:
        """``done`` of ``total`` (None: unknown) is finished; ``text`` says what is going on now."""
        self._done = done
        if not self._shown:
            return
        if self._bar is None:
            if time.monotonic() - self._started < _PATIENCE:
                return
            self._open()
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=done, total=total or self._total, description=text or self._text
            )

    def advance(self, count: float) -> None:
        """``count`` more is done."""
        self(self._done + count)

    def close(self) -> None:
        """Take the bar away."""
        self._shown = False
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._env.console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._text, total=None)
        self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
