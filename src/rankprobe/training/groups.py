"""From a list of students to trained ones: group by group, through one checkpoint."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import rankprobe
from rankprobe.errors import UsageError
from rankprobe.estimators.model import Model
from rankprobe.training.checkpoint import Checkpoint
from rankprobe.training.data import Pairs, tensors
from rankprobe.training.optimize import Schedule, Training, errors
from rankprobe.training.students import Architecture, Member, Students

Progress = Callable[..., None]


@dataclass(frozen=True)
class Trained:
    """One student after training.

    kernel [p_q, p_k] and values [p_v, d_v] : in the coordinates of ``model``; no scale in them.
    seen [n], heldout [m] : squared errors a sequence (``heldout`` None without such sequences).
    history : loss after every chunk of steps.
    """

    member: Member
    model: Model
    kernel: np.ndarray
    values: np.ndarray
    seen: np.ndarray
    heldout: np.ndarray | None
    history: np.ndarray
    steps: int
    stopped: bool
    """Whether the plateau ended it, not the number of steps."""
    seconds: float

    @property
    def loss(self) -> float:
        """Squared error a sequence on what it was trained on."""
        return float(np.mean(self.seen))

    @property
    def loss_heldout(self) -> float | None:
        return None if self.heldout is None else float(np.mean(self.heldout))


def train(
    pairs: Pairs,
    architecture: Architecture,
    members: Sequence[Member],
    schedule: Schedule,
    *,
    whiten: bool = False,
    device: str = "cpu",
    together: int | None = None,
    checkpoint: str | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> list[Trained]:
    """Train every member on the same pairs.

    Parameters
    ----------
    whiten : students see whitened tokens instead of the tokens as they are (the paper's way).
    together : members that share a pass (default: one on a CPU, where company saves nothing and each stops on
        its own plateau; all elsewhere). The result does not depend on it but for rounding and that plateau.
    checkpoint : file that keeps finished students and the state of the one at work: every half minute, and at
        an interrupt. The same call goes on from it (``restart``: begins anew); whoever has the results may
        remove it.
    progress : called as ``progress(done, total, text)`` in steps.
    """
    if not members:
        raise UsageError("there are no students to train; name at least one rank and one seed")
    device = checked_device(device)
    left = Checkpoint.open(
        checkpoint,
        {
            "data": [*pairs.sample.X.shape, *pairs.sample.Y.shape, float(np.sum(np.abs(pairs.sample.Y)))],
            "map": [pairs.kind, pairs.causal, pairs.quotient.bias, pairs.scale],
            "student": architecture.name,
            "members": [dataclasses.astuple(member) for member in members],
            "schedule": dataclasses.astuple(schedule),
            "whiten": whiten,
            "version": rankprobe.__version__,
        },
        restart=restart,
    )
    model = pairs.coordinates(whiten)
    blocks = tensors(model, pairs.sample, device, schedule.dtype)
    held = [] if pairs.heldout is None else tensors(model, pairs.heldout, device, schedule.dtype)
    # One line search serves one loss.
    alone = schedule.optimizer == "lbfgs" or (together is None and device == "cpu")
    size = 1 if alone else together or len(members)
    groups = [members[start : start + size] for start in range(0, len(members), size)]
    try:
        for number in range(len(left.finished), len(groups)):
            students = Students(architecture, groups[number], blocks[0], pairs.scale, device, schedule.dtype)
            training = Training(students, blocks, schedule)
            spent = 0.0
            state = left.resumed()
            if state is not None:
                training.restore(state)
                spent = state["seconds"]
            began = time.perf_counter() - spent
            while not training.done:
                losses = training.advance()
                left.keep({**training.state(), "seconds": time.perf_counter() - began})
                if progress is not None:
                    done = number * schedule.steps + training.step
                    progress(done, len(groups) * schedule.steps, _text(training, losses))
            training.best()
            left.finish(
                {
                    "kernels": students.kernels().double().cpu(),
                    "values": students.parameters["V"].detach().double().cpu(),
                    "seen": errors(students, blocks),
                    "heldout": errors(students, held) if held else None,
                    "history": training.losses,
                    "steps": training.step,
                    "stopped": training.stopped,
                    "seconds": time.perf_counter() - began,
                }
            )
    except KeyboardInterrupt:
        left.write()
        raise
    return [
        _member(group, index, member, model)
        for group, some in zip(left.finished, groups, strict=True)
        for index, member in enumerate(some)
    ]


def checked_device(name: str) -> str:
    """``name``, or for ``auto`` the best there is; raises :class:`UsageError` where it is missing."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else "not available"
        raise UsageError(f"device {name!r} cannot be used ({reason}); choose cpu or auto") from None
    return name


def _member(group: dict[str, Any], index: int, member: Member, model: Model) -> Trained:
    heldout = group["heldout"]
    return Trained(
        member,
        model,
        group["kernels"][index].numpy(),
        group["values"][index].numpy(),
        group["seen"][index].numpy(),
        None if heldout is None else heldout[index].numpy(),
        np.array([losses[index] for losses in group["history"]]),
        group["steps"],
        group["stopped"],
        group["seconds"] / len(group["kernels"]),
    )


def _text(training: Training, losses: list[float]) -> str:
    """What the progress bar says: where the group is, its loss, and the rank its kernel has reached."""
    values = torch.linalg.svdvals(training.students.kernels()[0].double().cpu())
    share = values / values.sum()
    rank = float(torch.exp(-torch.sum(share * torch.log(share.clamp_min(1e-300)))))
    member = training.students.members[0]
    at = f"rank {member.rank}, seed {member.seed}: step {training.step}"
    return f"{at}, loss {losses[0]:.5g}, effective rank {rank:.2f}"
