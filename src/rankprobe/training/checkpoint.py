"""What is left of an interrupted training: finished students, and the one at work at its last safe step."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rankprobe.data import replacing
from rankprobe.errors import DataError

INTERVAL = 30.0
"""Seconds between two writes; what is killed loses no more than that."""


@dataclass
class Checkpoint:
    """Finished groups of students and the state of the running one, in a file or (path None) nowhere.

    task : what is being trained, in plain values; a file of another task is not resumed.
    """

    path: str | None
    task: Mapping[str, Any]
    finished: list[dict[str, Any]] = field(default_factory=list)
    running: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._written = time.monotonic()

    @classmethod
    def open(cls, path: str | None, task: Mapping[str, Any], *, restart: bool = False) -> Checkpoint:
        """Continue ``path`` where it is there, unless ``restart``.

        Raises :class:`DataError` where it holds another task, or is damaged.
        """
        made = cls(path, json.loads(json.dumps(task)))
        if path is None or restart or not Path(path).exists():
            return made
        try:
            # Tensors and plain values only: a checkpoint from elsewhere runs no code.
            found = torch.load(path, weights_only=True, map_location="cpu")
            task_found, finished, running = found["task"], found["finished"], found["running"]
        except (OSError, RuntimeError, KeyError, TypeError, EOFError, pickle.UnpicklingError):
            raise DataError(f"{path}: is no checkpoint of a training; pass --restart to replace it") from None
        if task_found != made.task:
            names = [name for name, value in made.task.items() if task_found.get(name) != value]
            raise DataError(
                f"{path}: was left by a training with other settings ({', '.join(names)}); "
                "pass --restart to discard it, or --checkpoint for another file"
            )
        made.finished, made.running = finished, running
        return made

    def resumed(self) -> dict[str, Any] | None:
        """State of the first group that is not finished, or None where it has not begun."""
        running = self.running
        return running if running is not None and running["group"] == len(self.finished) else None

    def keep(self, state: dict[str, Any]) -> None:
        """The first group that is not finished is at ``state``; written when the last write is old enough."""
        self.running = {**state, "group": len(self.finished)}
        if time.monotonic() - self._written > INTERVAL:
            self.write()

    def finish(self, group: dict[str, Any]) -> None:
        """The running group is done."""
        self.finished.append(group)
        if time.monotonic() - self._written > INTERVAL:
            self.write()

    def write(self) -> None:
        """Put down what there is."""
        if self.path is None or not (self.finished or self.running):
            return
        held = {"task": self.task, "finished": self.finished, "running": self.running}
        with replacing(self.path, force=True) as temporary:
            torch.save(held, temporary)
        self._written = time.monotonic()
