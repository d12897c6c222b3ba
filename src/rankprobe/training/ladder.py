"""The ladder of architectures on one target: which rung still solves it, and where it breaks (Table 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankprobe.errors import UsageError
from rankprobe.training.data import Pairs
from rankprobe.training.groups import Progress, Trained, train
from rankprobe.training.optimize import Schedule
from rankprobe.training.rank_sweep import NEGLIGIBLE, REACHED, risk
from rankprobe.training.students import RUNGS, Architecture, Member


@dataclass(frozen=True)
class Rung:
    """The best student of one architecture."""

    rung: str
    student: str
    rank: int | None
    """Of its kernel; None where it is full."""
    excess: float
    """Squared error a sequence beyond the floor."""
    excess_worst: float
    explained: float
    """Share of the variance of Y beyond the floor."""
    solves: bool
    steps: int
    seconds: float


@dataclass(frozen=True)
class Ladder:
    """All rungs, in order, and the first that does not solve the target."""

    rungs: tuple[Rung, ...]
    breaks: str | None
    message: str
    floor: float
    floor_from: str
    sequences_used: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**dataclasses.asdict(self), "rungs": [dataclasses.asdict(rung) for rung in self.rungs]}


def climb(
    pairs: Pairs,
    rank: int,
    schedule: Schedule | None = None,
    *,
    seeds: Sequence[int] = (0,),
    device: str = "cpu",
    progress: Progress | None = None,
) -> Ladder:
    """Train every architecture at ``rank`` on the same pairs, without biases, best of ``seeds``.

    The floor is the noise known of ``pairs``, else the best rung's loss. ``schedule`` is the paper's 1500
    steps of Adam where it is None.

    Raises
    ------
    UsageError : no rank, no seed, or a device that is not there.
    """
    if rank < 1 or not seeds:
        raise UsageError("the ladder needs a rank of at least 1 and at least one seed")
    members = [Member(rank, each) for each in seeds]
    found = [
        train(
            pairs.of_kind(architecture.kind),
            architecture,
            members,
            schedule or Schedule(steps=1500),
            device=device,
            progress=None if progress is None else _part(progress, number, architecture),
        )
        for number, architecture in enumerate(RUNGS)
    ]
    floor, floor_from = min(risk(one) for trained in found for one in trained), "best rung"
    if pairs.sigma is not None:
        floor, floor_from = pairs.floor(pairs.sigma), "file"
    made = tuple(
        _rung(pairs, architecture, trained, floor, rank)
        for architecture, trained in zip(RUNGS, found, strict=True)
    )
    breaks = next((rung for rung in made if not rung.solves), None)
    message = "every rung solves the target"
    if breaks is not None:
        left = 1.0 - breaks.explained
        message = f"breaks at {breaks.rung} ({breaks.student}), which leaves {left:.1%} of the variance"
    return Ladder(
        made,
        None if breaks is None else breaks.rung,
        message,
        floor,
        floor_from,
        pairs.sample.sequences,
        sum(rung.seconds for rung in made),
    )


def _rung(
    pairs: Pairs, architecture: Architecture, trained: Sequence[Trained], floor: float, rank: int
) -> Rung:
    best = min(trained, key=risk)
    explainable = max(pairs.variation() - floor, 1e-300)
    excess = risk(best) - floor
    return Rung(
        rung=architecture.name,
        student=architecture.title,
        rank=rank if architecture.factored else None,
        excess=excess,
        excess_worst=max(map(risk, trained)) - floor,
        explained=1.0 - excess / explainable,
        solves=excess <= REACHED * floor + NEGLIGIBLE * pairs.variation(),
        steps=best.steps,
        seconds=sum(one.seconds for one in trained),
    )


def _part(progress: Progress, number: int, architecture: Architecture) -> Progress:
    """Progress of one rung as a part of the whole ladder's."""

    def report(done: float, total: float, text: str) -> None:
        progress(number * total + done, len(RUNGS) * total, f"{architecture.name}: {text}")

    return report
