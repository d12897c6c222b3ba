"""Pieces of work that several tables share: teachers, students at given ranks, recoveries, refits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import rankprobe
from rankprobe import spectra
from rankprobe.experiments.table import Cell, Result
from rankprobe.teachers import Teacher
from rankprobe.training.data import Pairs, prepare
from rankprobe.training.groups import train
from rankprobe.training.measure import corrected, spectrum
from rankprobe.training.optimize import Schedule
from rankprobe.training.students import STUDENT_OF, Member

Progress = Callable[..., None] | None

SEEDS = range(5)
"""The paper's seeds."""

FULL, QUICK = 3000, 400
"""Sequences of a cell."""

SWEEP_STEPS, RECOVERY_STEPS = 1500, 2500
"""Steps of Adam, unless a plateau ends them."""

SMALL_START = 0.3


def settings(quick: bool) -> Cell:
    """What all cells of a run have in common."""
    return {
        "sequences": QUICK if quick else FULL,
        "sweep_steps": 600 if quick else SWEEP_STEPS,
        "recovery_steps": 800 if quick else RECOVERY_STEPS,
    }


def seeds(quick: bool) -> Iterable[int]:
    return range(1) if quick else SEEDS


def teacher_of(cell: Cell) -> Teacher:
    return rankprobe.make_teacher(
        cell["teacher"], cell["rank"], cell["tokens"], cell["dim"],
        spectrum=cell.get("spectrum", "sharp"), seed=cell["seed"],
    )  # fmt: skip


def data_of(cell: Cell) -> tuple[Teacher, np.ndarray, np.ndarray]:
    """Teacher, X and Y of a cell."""
    teacher = teacher_of(cell)
    X, Y = next(iter(teacher.blocks(cell["sequences"], cell["sequences"])))[:2]
    return teacher, X, Y


def pairs_of(cell: Cell) -> Pairs:
    """The cell's data as the paper's students see them: no biases, the teacher's link and scale, σ known."""
    teacher, X, Y = data_of(cell)
    return prepare(
        X, Y, attention=cell["teacher"].removesuffix("_qk"), causal=False, bias=False, scale=teacher.scale,
        sigma=teacher.noise, seed=cell["seed"],
    )  # fmt: skip


def students(cell: Cell, progress: Progress = None) -> Result:
    """Students of the ranks of ``cell``: excess risk and effective rank of each."""
    pairs = pairs_of(cell)
    members = [Member(rank, cell["seed"]) for rank in cell["ranks"]]
    trained = train(
        pairs, STUDENT_OF[pairs.kind], members, Schedule(steps=cell["sweep_steps"]), progress=progress
    )
    floor = pairs.floor(pairs.sigma or 0.0)
    return {
        "excess": {str(one.member.rank): one.loss - floor for one in trained},
        "effective_rank": {
            str(one.member.rank): spectra.effective_rank(spectrum(pairs, one)) for one in trained
        },
        "steps": {str(one.member.rank): one.steps for one in trained},
    }


def recovery(cell: Cell, progress: Progress = None) -> Result:
    """One over-parameterized student from a small start: the measures of its kernel."""
    pairs = pairs_of(cell)
    width = cell["tokens"] if pairs.kind == "fixed_operator" else cell["dim"]
    member = Member(width, cell["seed"], SMALL_START)
    (one,) = train(
        pairs, STUDENT_OF[pairs.kind], [member], Schedule(steps=cell["recovery_steps"]), progress=progress
    )
    values = spectrum(pairs, one)
    effective = spectra.effective_rank(values)
    return {
        "excess": one.loss - pairs.floor(pairs.sigma or 0.0),
        "effective_rank": effective,
        "effective_rank_corrected": corrected(effective, width, cell["sequences"]),
        "energy_rank": spectra.energy_rank(values),
        "steps": one.steps,
    }


def refit(cell: Cell, progress: Progress = None) -> Result:
    """The estimate from the data alone, with its curve: no training."""
    teacher, X, Y = data_of(cell)
    began = time.perf_counter()
    answer: Any = rankprobe.estimate(
        X, Y, attention=cell["teacher"].removesuffix("_qk"), causal=False, bias=False, scale=teacher.scale,
        seed=cell["seed"], curve=True, progress=progress,
    )  # fmt: skip
    points = () if answer.curve is None else answer.curve.points
    return {
        "rank": answer.rank,
        "energy_rank": answer.energy_rank,
        "excess": {str(point.rank): point.excess for point in points},
        "estimate_seconds": time.perf_counter() - began,
    }


def best(*values: float | None) -> float | None:
    """The least of what was found."""
    found = [value for value in values if value is not None]
    return min(found) if found else None
