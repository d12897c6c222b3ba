"""What training recovers: over-parameterized students from a small start, beside the estimate (Theorem 8)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from rankprobe.errors import UsageError
from rankprobe.estimators.result import Status
from rankprobe.training.data import Pairs
from rankprobe.training.groups import Progress, Trained, checked_device, train
from rankprobe.training.measure import Learned, learned
from rankprobe.training.optimize import Schedule
from rankprobe.training.students import STUDENT_OF, Member

SMALL = 0.3
"""Scale of the first weights of an over-parameterized student (the paper's)."""

CONVERGED = 1.1
"""A loss above this many times the noise has not been trained to the end (or cannot reach it)."""

NEGLIGIBLE = 1e-4
"""Share of the variance of Y that counts as reached where there is no noise."""

FACTOR = 2.0
"""Losses at equal rank agree within this factor."""


class Verdict(StrEnum):
    """Whether training and the estimate say the same."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_CONVERGED = "not_converged"
    """The students have not reached the noise: their kernel says nothing yet."""
    NO_ESTIMATE = "no_estimate"
    """The estimate is not usable, so there is nothing to compare with."""

    @property
    def usable(self) -> bool:
        return self in (Verdict.AGREES, Verdict.DIFFERS)


@dataclass(frozen=True)
class Student:
    """One trained student."""

    seed: int
    loss: float
    """Squared error a sequence, summed over T · d_v, on the sequences trained on."""
    loss_heldout: float | None
    loss_over_floor: float | None
    steps: int
    stopped: str
    """``plateau`` or ``steps``."""
    seconds: float
    kernel: Learned

    def to_dict(self) -> dict[str, Any]:
        facts = dataclasses.asdict(self)
        kernel = facts.pop("kernel")
        return {**facts, **kernel}


@dataclass(frozen=True)
class Recovery:
    """Students of several seeds on one head, and the estimate they are held against."""

    attention: str
    causal: bool
    bias: bool
    student: str
    """Architecture on the paper's ladder (B0, B1, B2)."""
    student_rank: int
    init: float
    whiten: bool
    optimizer: str
    steps: int
    device: str
    sequences_used: int
    sequences_heldout: int
    floor: float | None
    """σ²Td_v: squared error a sequence that noise alone leaves."""
    floor_from: str | None
    rank: int | None
    """Singular values above the noise edge, in the median student."""
    effective_rank: float
    """Mean over the students; ``_cv`` is the standard deviation over the mean."""
    effective_rank_cv: float | None
    energy_rank: float
    energy_rank_cv: float | None
    loss_at_rank: float | None
    """Loss that the estimate's curve gives for the students' rank."""
    verdict: Verdict
    message: str
    seconds: float
    estimate_seconds: float | None
    """None where the estimate was not made here."""
    estimate: Mapping[str, Any] | None
    students: tuple[Student, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        out = {name.name: getattr(self, name.name) for name in dataclasses.fields(self)}
        return {
            **out,
            "verdict": str(self.verdict),
            "students": [student.to_dict() for student in self.students],
        }


def recover(
    pairs: Pairs,
    schedule: Schedule | None = None,
    *,
    rank: int | None = None,
    init: float = SMALL,
    seeds: Sequence[int] = (0,),
    whiten: bool = False,
    device: str = "cpu",
    estimate: Mapping[str, Any] | None = None,
    curve: bool = False,
    checkpoint: str | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> Recovery:
    """Train students wider than needed from small weights, and measure the kernel they find.

    Parameters
    ----------
    pairs : from :func:`~rankprobe.training.data.prepare`; the students are of the same kind as the map.
    rank : r of K = P Qᵀ (default: as many as the features have dimensions, d of the paper).
    init : scale of the first P and Q; see :class:`~rankprobe.training.students.Member`.
    seeds : one student each.
    whiten : train in whitened tokens, where trained heads converge far sooner; the paper does not.
    device : of torch; ``auto`` takes an accelerator where there is one.
    estimate : a saved estimate (``Result.to_dict()``); made here when None, with its curve if ``curve``.
    checkpoint, restart, progress : see :func:`~rankprobe.training.groups.train`.

    Raises
    ------
    UsageError, DataError : the call or the data cannot be used as they are.
    """
    schedule = schedule or Schedule()
    if not seeds:
        raise UsageError("name at least one seed")
    device = checked_device(device)
    model = pairs.coordinates(whiten)
    widest = min(int(model.query.whiten.shape[1]), int(model.key.whiten.shape[1]))
    width = widest if rank is None else rank
    if width < 1:
        raise UsageError(f"a student's rank must be at least 1, not {width}")
    members = [Member(width, each, init) for each in seeds]
    estimate_seconds = None
    if estimate is None:
        import rankprobe

        began = time.perf_counter()
        made = rankprobe.estimate(
            pairs.source,
            head=pairs.head,
            attention=pairs.kind,
            causal=pairs.causal,
            bias=pairs.quotient.bias,
            scale=pairs.scale,
            seed=pairs.seed,
            curve=curve,
            progress=progress,
        )
        estimate, estimate_seconds = made.to_dict(), time.perf_counter() - began
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
    floor, floor_from = _floor(pairs, estimate)
    students = tuple(_student(pairs, one, floor) for one in trained)
    loss_at_rank = _loss_at(estimate, width)
    verdict, message = _verdict(pairs, students, estimate, floor, loss_at_rank)
    ranks = [one.kernel.rank for one in students if one.kernel.rank is not None]
    effective = [one.kernel.effective_rank for one in students]
    energy = [one.kernel.energy_rank for one in students]
    return Recovery(
        attention=pairs.kind,
        causal=pairs.causal,
        bias=pairs.quotient.bias,
        student=STUDENT_OF[pairs.kind].name,
        student_rank=width,
        init=init,
        whiten=whiten,
        optimizer=schedule.optimizer,
        steps=schedule.steps,
        device=device,
        sequences_used=pairs.sample.sequences,
        sequences_heldout=pairs.sequences_heldout,
        floor=floor,
        floor_from=floor_from,
        rank=sorted(ranks)[len(ranks) // 2] if ranks else None,
        effective_rank=float(np.mean(effective)),
        effective_rank_cv=variation(effective),
        energy_rank=float(np.mean(energy)),
        energy_rank_cv=variation(energy),
        loss_at_rank=loss_at_rank,
        verdict=verdict,
        message=message,
        seconds=sum(one.seconds for one in trained),
        estimate_seconds=estimate_seconds,
        estimate=estimate,
        students=students,
    )


def variation(values: Sequence[float]) -> float | None:
    """Coefficient of variation: standard deviation over mean; None for fewer than two values."""
    return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else None


def _floor(pairs: Pairs, estimate: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Noise of a sequence and where it is known from: noted with the data, else estimated."""
    if pairs.sigma is not None:
        return pairs.floor(pairs.sigma), "file"
    sigma = estimate.get("noise_sigma")
    return (None, None) if sigma is None else (pairs.floor(float(sigma)), "estimate")


def _student(pairs: Pairs, one: Trained, floor: float | None) -> Student:
    return Student(
        seed=one.member.seed,
        loss=one.loss,
        loss_heldout=one.loss_heldout,
        loss_over_floor=one.loss / floor if floor else None,
        steps=one.steps,
        stopped="plateau" if one.stopped else "steps",
        seconds=one.seconds,
        kernel=learned(pairs, one, seed=pairs.seed),
    )


def _loss_at(estimate: Mapping[str, Any], width: int) -> float | None:
    """Loss of the estimate's curve at the students' rank, or at its last where that is smaller."""
    curve = estimate.get("curve")
    if not curve:
        return None
    points = curve["points"]
    return float(curve["floor"] + points[min(width, len(points) - 1)]["excess"])


def _verdict(
    pairs: Pairs,
    students: Sequence[Student],
    estimate: Mapping[str, Any],
    floor: float | None,
    loss_at_rank: float | None,
) -> tuple[Verdict, str]:
    """Agreement in one line: of the counted directions, or where none can be counted of the losses."""
    if not Status(estimate["status"]).usable:
        return Verdict.NO_ESTIMATE, f"the estimate is {estimate['status']}: {estimate['message']}"
    low, high = estimate["rank_interval"]
    told = f"the estimate says {estimate['rank']} [{low}, {high}]"
    counted = [one.kernel for one in students if one.kernel.rank is not None]
    if counted:
        reached = CONVERGED * (floor or 0.0) + NEGLIGIBLE * pairs.variation()
        worst = max(one.loss for one in students)
        ranks = sorted({one.rank for one in counted if one.rank is not None})
        many = "direction" if ranks == [1] else "directions"
        found = f"the students' kernels have {_listed(ranks)} {many} above their noise, {told}"
        if worst > reached:
            return (
                Verdict.NOT_CONVERGED,
                f"a student's loss is {worst:.4g}, {worst / reached:.1f} times what noise leaves; "
                "more --steps, or --optimizer lbfgs",
            )
        agree = all((one.rank or 0) <= high and (one.rank_upper or 0) >= low for one in counted)
        if not agree and any(one.stopped == "steps" for one in students):
            found += "; not all students came to rest: more --steps"
        return (Verdict.AGREES if agree else Verdict.DIFFERS), found
    losses = [one.loss if one.loss_heldout is None else one.loss_heldout for one in students]
    if loss_at_rank is None or loss_at_rank <= 0:
        return (
            Verdict.NO_ESTIMATE,
            f"tokens are too wide to count directions; {told}; pass --curve to compare losses at equal rank",
        )
    ratio = min(losses) / loss_at_rank
    agree = 1.0 / FACTOR <= ratio <= FACTOR
    compared = f"at equal rank the best student leaves {ratio:.3g} times the loss of the curve; {told}"
    return (Verdict.AGREES if agree else Verdict.DIFFERS), compared


def _listed(ranks: Sequence[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else " or ".join(map(str, ranks))
