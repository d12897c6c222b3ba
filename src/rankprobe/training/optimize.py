"""Training one stack of students: Adam as in the paper, or L-BFGS, stoppable and resumable at any step."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from rankprobe.errors import UsageError
from rankprobe.solver import Problem
from rankprobe.training.students import Students

OptimizerName = Literal["adam", "lbfgs"]

CHUNK: dict[str, int] = {"adam": 25, "lbfgs": 10}
"""Steps between two looks at the loss."""

HISTORY = 50
"""Pairs that L-BFGS remembers."""


@dataclass(frozen=True)
class Schedule:
    """How long and how to train.

    optimizer : ``adam`` on the full batch (the paper's), or ``lbfgs`` with a strong Wolfe line search, in
        float64, one student after the other: each of its steps costs a little over one of Adam's.
    rate : learning rate of Adam.
    patience, gain : stop when ``patience`` steps have not lowered the least loss by more than this share
        of it (patience 0: never). The small start has plateaus of its own, one before each direction it
        finds: patience should outlast them.
    """

    optimizer: OptimizerName = "adam"
    steps: int = 2500
    rate: float = 1e-2
    patience: int = 250
    gain: float = 1e-5

    @classmethod
    def of(
        cls, optimizer: OptimizerName, steps: int | None, patience: int | None, *, adam_steps: int
    ) -> Schedule:
        """The schedule asked for; None is ``adam_steps`` of Adam, or as much as L-BFGS needs for the same."""
        usual = {"adam": (adam_steps, 250), "lbfgs": (400, 30)}
        steps_usual, patience_usual = usual.get(optimizer, usual["adam"])
        return cls(
            optimizer,
            steps_usual if steps is None else steps,
            patience=patience_usual if patience is None else patience,
        )

    def __post_init__(self) -> None:
        if self.optimizer not in CHUNK:
            raise UsageError(f"there is no optimizer {self.optimizer!r}; choose {' or '.join(CHUNK)}")
        if self.steps < 1 or self.patience < 0:
            raise UsageError(
                f"steps must be at least 1 and patience at least 0, not {self.steps}, {self.patience}"
            )
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise UsageError(f"the learning rate must be positive, not {self.rate}")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.optimizer == "lbfgs" else torch.float32


@dataclass
class Training:
    """A stack under its optimizer; :meth:`advance` it until :attr:`done`, then take :meth:`best`.

    losses : least squared error a sequence that each member has reached, one row a chunk. Adam at a fixed
        rate does not come to rest, so every member's best weights are kept as it goes.
    """

    students: Students
    blocks: Sequence[Problem]
    schedule: Schedule
    step: int = 0
    losses: list[list[float]] = field(default_factory=list)
    stopped: bool = False

    def __post_init__(self) -> None:
        weights = list(self.students.parameters.values())
        self._best = {name: one.detach().clone() for name, one in self.students.parameters.items()}
        self._least = torch.full_like(weights[0][:, 0, 0], math.inf)
        self._count = sum(int(block.outputs.shape[0]) for block in self.blocks)
        self._optimizer: torch.optim.Optimizer
        if self.schedule.optimizer == "adam":
            self._optimizer = torch.optim.Adam(weights, lr=self.schedule.rate)
        else:
            self._optimizer = torch.optim.LBFGS(
                weights,
                max_iter=CHUNK["lbfgs"],
                history_size=HISTORY,
                tolerance_grad=0.0,
                tolerance_change=0.0,
                line_search_fn="strong_wolfe",
            )

    @property
    def done(self) -> bool:
        return self.stopped or self.step >= self.schedule.steps

    def advance(self) -> list[float]:
        """One chunk of steps; returns the least loss of every member so far."""
        count = min(CHUNK[self.schedule.optimizer], self.schedule.steps - self.step)
        if isinstance(self._optimizer, torch.optim.LBFGS):
            self._optimizer.param_groups[0]["max_iter"] = count
            self._optimizer.step(self._closure)  # type: ignore[no-untyped-call]
        else:
            for _ in range(count):
                self._closure()
                self._optimizer.step()
        self.step += count
        self.losses.append([float(loss) for loss in self._least])
        self.stopped = self._settled()
        return self.losses[-1]

    def _closure(self) -> float:
        """Gradient of the sum of the members' losses: each feels its own alone."""
        self._optimizer.zero_grad()
        total = torch.zeros_like(self._least)
        for block in self.blocks:
            losses = self.students.errors(block).sum(dim=1) / self._count
            losses.sum().backward()  # type: ignore[no-untyped-call]
            total += losses.detach()
        better = total < self._least
        self._least = torch.where(better, total, self._least)
        for name, weights in self.students.parameters.items():
            chosen = better.reshape(-1, *[1] * (weights.ndim - 1))
            self._best[name] = torch.where(chosen, weights.detach(), self._best[name])
        return float(total.sum())

    def best(self) -> None:
        """Put the best weights of every member into the students."""
        self.students.load(self._best)

    def _settled(self) -> bool:
        window = math.ceil(self.schedule.patience / CHUNK[self.schedule.optimizer])
        if window == 0 or len(self.losses) <= window:
            return False
        before = self.losses[-1 - window]
        return all(
            now >= (1.0 - self.schedule.gain) * then
            for now, then in zip(self.losses[-1], before, strict=True)
        )

    def state(self) -> dict[str, Any]:
        """All that a later process needs to go on as if nothing had happened; copies, safe to keep."""
        return {
            "weights": {name: one.detach().clone() for name, one in self.students.parameters.items()},
            "best": dict(self._best),
            "least": self._least,
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "step": self.step,
            "losses": copy.deepcopy(self.losses),
            "stopped": self.stopped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.students.load(state["weights"])
        device = self._least.device
        self._best = {name: one.to(device) for name, one in state["best"].items()}
        self._least = state["least"].to(device)
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.losses, self.stopped = state["step"], state["losses"], state["stopped"]


def errors(students: Students, blocks: Sequence[Problem]) -> Tensor:
    """‖y − ŷ‖² of every member on every sequence, [members, n], float64 on the CPU."""
    with torch.no_grad():
        return torch.cat([students.errors(block) for block in blocks], dim=1).double().cpu()
