"""Students of every rank: excess risk, and the rank from which on the noise is reached (Theorems 5–7)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankprobe import spectra
from rankprobe.decision.excess import Errors
from rankprobe.errors import UsageError
from rankprobe.tokens import second_moment
from rankprobe.training.data import Pairs
from rankprobe.training.groups import Progress, Trained, checked_device, train
from rankprobe.training.measure import spectrum
from rankprobe.training.optimize import Schedule
from rankprobe.training.students import STUDENT_OF, Member

LARGEST = "largest rank"
"""Where the floor is from when the noise is not known: what the students of largest rank leave."""

REACHED = 0.01
"""Excess, as a share of the noise floor, within which a student counts as having reached it."""

NEGLIGIBLE = 1e-4
"""The same as a share of the variance of Y, for data without noise."""


@dataclass(frozen=True)
class SweepPoint:
    """The best student of one rank."""

    rank: int
    excess: float
    """Squared error a sequence beyond the floor: the geometric mean of the errors on sequences seen and held
    out, as in the estimate's curve, or on those seen alone where none are held out (the paper's)."""
    standard_error: float
    """Of the paired difference to the student of largest rank, from the spread over sequences."""
    excess_worst: float
    """Of the seed that fared worst."""
    loss: float
    loss_heldout: float | None
    deficiency_bound: float | None
    """Least excess that Theorem 5 allows (fixed operators): λ_min(Σ_X) σ_min(V)² Σ_{j>r} λ_j²."""
    achieved: bool
    """Whether the excess is within 1 % of the floor."""
    effective_rank: float
    energy_rank: float
    steps: int
    seconds: float
    """Of all seeds."""
    curve_excess: float | None
    curve_standard_error: float | None


@dataclass(frozen=True)
class Sweep:
    """Excess risk against rank, from trained students."""

    attention: str
    causal: bool
    bias: bool
    student: str
    optimizer: str
    steps: int
    whiten: bool
    device: str
    seeds: tuple[int, ...]
    sequences_used: int
    sequences_heldout: int
    floor: float
    floor_from: str
    """``file``, or ``largest rank``: its students' own risk."""
    reached: float
    """Excess up to which a rank counts as achieved."""
    rank: int | None
    """The phase transition: the least rank from which on every student achieves the floor."""
    message: str
    seconds: float
    points: tuple[SweepPoint, ...]
    estimate: Mapping[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        out = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {
            **out,
            "seeds": list(self.seeds),
            "points": [dataclasses.asdict(point) for point in self.points],
        }


def sweep(
    pairs: Pairs,
    ranks: Sequence[int],
    schedule: Schedule | None = None,
    *,
    init: float = 1.0,
    seeds: Sequence[int] = (0,),
    whiten: bool = False,
    device: str = "cpu",
    estimate: Mapping[str, Any] | None = None,
    checkpoint: str | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> Sweep:
    """Train a student of every rank in ``ranks`` (best of ``seeds``), and find where the floor is reached.

    ``estimate`` is an estimate with its curve (``Result.to_dict()``), whose excess is set beside the
    students'; ``schedule`` is the paper's 1500 steps of Adam where it is None. The other parameters are those
    of :func:`rankprobe.training.recover`.

    Raises
    ------
    UsageError, DataError : the call or the data cannot be used as they are.
    """
    schedule = schedule or Schedule(steps=1500)
    wanted = sorted(set(ranks))
    if not wanted or wanted[0] < 1:
        raise UsageError("the ranks of a sweep are integers from 1 up")
    if not seeds:
        raise UsageError("name at least one seed")
    device = checked_device(device)
    members = [Member(rank, each, init) for rank in wanted for each in seeds]
    trained = train(
        pairs,
        STUDENT_OF[pairs.kind],
        members,
        schedule,
        whiten=whiten,
        device=device,
        checkpoint=checkpoint,
        restart=restart,
        progress=progress,
    )
    by_rank = [[one for one in trained if one.member.rank == rank] for rank in wanted]
    best = [min(students, key=risk) for students in by_rank]
    floor, floor_from = risk(best[-1]), LARGEST
    if pairs.sigma is not None:
        floor, floor_from = pairs.floor(pairs.sigma), "file"
    reached = REACHED * floor + NEGLIGIBLE * pairs.variation()
    bars = _standard_errors(best)
    bounds = _deficiency_bounds(pairs, best[-1], wanted)
    curve = {point["rank"]: point for point in ((estimate or {}).get("curve") or {}).get("points", ())}
    points = []
    for number, (rank, students, one) in enumerate(zip(wanted, by_rank, best, strict=True)):
        values = spectrum(pairs, one)
        beside = curve.get(rank, {})
        points.append(
            SweepPoint(
                rank=rank,
                excess=risk(one) - floor,
                standard_error=float(bars[number]),
                excess_worst=max(map(risk, students)) - floor,
                loss=one.loss,
                loss_heldout=one.loss_heldout,
                deficiency_bound=bounds[number] if bounds else None,
                achieved=risk(one) - floor <= reached,
                effective_rank=spectra.effective_rank(values),
                energy_rank=spectra.energy_rank(values),
                steps=one.steps,
                seconds=sum(student.seconds for student in students),
                curve_excess=beside.get("excess"),
                curve_standard_error=beside.get("standard_error"),
            )
        )
    transition, message = _transition(points, reached, floor_from)
    return Sweep(
        attention=pairs.kind,
        causal=pairs.causal,
        bias=pairs.quotient.bias,
        student=STUDENT_OF[pairs.kind].name,
        optimizer=schedule.optimizer,
        steps=schedule.steps,
        whiten=whiten,
        device=device,
        seeds=tuple(seeds),
        sequences_used=pairs.sample.sequences,
        sequences_heldout=pairs.sequences_heldout,
        floor=floor,
        floor_from=floor_from,
        reached=reached,
        rank=transition,
        message=message,
        seconds=sum(one.seconds for one in trained),
        points=tuple(points),
        estimate=estimate,
    )


def risk(student: Trained) -> float:
    """Squared error a sequence: on those seen, or its geometric mean with that on those held out."""
    if student.loss_heldout is None:
        return student.loss
    return float(np.sqrt(student.loss * student.loss_heldout))


def _standard_errors(best: Sequence[Trained]) -> np.ndarray:
    seen = np.stack([one.seen for one in best])
    held = [one.heldout for one in best if one.heldout is not None]
    errors = Errors(seen, np.stack(held), same=False) if held else Errors(seen, seen, same=True)
    return errors.excess(len(best) - 1)[1]


def _deficiency_bounds(pairs: Pairs, widest: Trained, ranks: Sequence[int]) -> list[float] | None:
    """Theorem 5 with what the widest student has learned in place of A* and V*; None for other maps."""
    if pairs.kind != "fixed_operator":
        return None
    λ = np.linalg.svd(widest.kernel, compute_uv=False)
    least = float(np.linalg.eigvalsh(second_moment(pairs.sample.X, pairs.sample.rows))[0])
    features = int(pairs.sample.X.shape[2])
    weight = least * float(np.linalg.svd(widest.values[:features], compute_uv=False)[-1]) ** 2
    return [weight * float(np.sum(λ[rank:] ** 2)) for rank in ranks]


def _transition(points: Sequence[SweepPoint], reached: float, floor_from: str) -> tuple[int | None, str]:
    """The least rank from which on all achieve the floor, and the step in words."""
    first = len(points)
    while first > 0 and points[first - 1].achieved:
        first -= 1
    if first == len(points):
        last = points[-1]
        return None, f"no rank reaches the noise: at {last.rank} the excess is still {last.excess:.4g}"
    if floor_from == LARGEST and first == len(points) - 1:
        # What the largest rank leaves is a floor only if the rank below it leaves no more.
        return (
            None,
            f"the noise is not known, and rank {points[-1].rank}, the largest, gains over those below",
        )
    at = points[first]
    after = f"{at.excess:.4g} at rank {at.rank}, within {reached:.4g} of the floor"
    if first == 0:
        return at.rank, f"the floor is reached at once: excess {after}"
    before = points[first - 1]
    return at.rank, f"the excess falls from {before.excess:.4g} at rank {before.rank} to {after}"
