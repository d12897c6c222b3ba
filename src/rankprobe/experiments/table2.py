"""Table 2: the ladder of architectures on a fixed operator; only the fixed operator itself solves it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankprobe.experiments.table import Cell, Entry, Result, mean
from rankprobe.experiments.tasks import SMALL_START, Progress, data_of, seeds, settings, teacher_of
from rankprobe.training.data import prepare
from rankprobe.training.groups import train
from rankprobe.training.optimize import Schedule
from rankprobe.training.students import RUNGS, Member

TITLE = "Ladder: excess risk at r = r* on a fixed operator, T = 12, d = 10, r* = 3"

PAPER = {"B0": 0.00, "B1": 69.37, "B1c": 69.05, "B2": 68.67, "B3": 51.86}
ALIKE = "least error of maps that treat positions alike"


def cells(quick: bool) -> list[Cell]:
    base = {"teacher": "fixed_operator", "rank": 3, "tokens": 12, "dim": 10, **settings(quick)}
    return [{**base, "seed": seed, "rung": rung.name} for seed in seeds(quick) for rung in RUNGS]


def run(cell: Cell, progress: Progress = None) -> Result:
    """One rung from the usual start and from the small one; the better excess risk counts."""
    teacher, X, Y = data_of(cell)
    rung = next(rung for rung in RUNGS if rung.name == cell["rung"])
    # Scores are scaled as in the attention-native tables.
    pairs = prepare(
        X, Y, attention=rung.kind, causal=False, bias=False, scale=cell["dim"] ** -0.5, sigma=teacher.noise,
        seed=cell["seed"],
    )  # fmt: skip
    members = [Member(cell["rank"], cell["seed"], init) for init in (1.0, SMALL_START)]
    trained = train(pairs, rung, members, Schedule(steps=cell["sweep_steps"]), progress=progress)
    floor = pairs.floor(teacher.noise)
    return {
        "excess": min(one.loss for one in trained) - floor,
        "by_start": [one.loss - floor for one in trained],
        "variation": pairs.variation() - floor,
        "steps": [one.steps for one in trained],
    }


def entries(done: Sequence[tuple[Cell, Result]]) -> list[Entry]:
    out = []
    for rung in RUNGS:
        found = [(cell, result) for cell, result in done if cell["rung"] == rung.name]
        values = tuple(result["excess"] for _, result in found)
        # Every map but the fixed operator commutes with a permutation of its tokens.
        positions = rung.kind == "fixed_operator"
        reference = 0.0 if positions else mean([_alike(cell) for cell, _ in found])
        is_ = "closed form" if positions else ALIKE
        out.append(
            Entry(
                f"{rung.name} {rung.title}", "excess", mean(values), PAPER[rung.name], reference, is_, values
            )
        )
    return out


def notes(done: Sequence[tuple[Cell, Result]]) -> list[str]:
    total = mean([result["variation"] for _, result in done])
    least = mean([_alike(cell) for cell, _ in done])
    return [
        f"On our draws doing nothing leaves {total:.2f}, and the {ALIKE} is {least:.2f}: A* less its parts "
        "along I and 11ᵀ. The paper's B1 to B2 are what students leave that have not found the part along I."
    ]


def _alike(cell: Cell) -> float:
    """‖A* − aI − b(11ᵀ − I)‖² ‖V‖² at the best a and b.

    The best approximation of a map by ones that commute with permutations is its mean over them, when the
    law of the tokens does not change under them.
    """
    teacher = teacher_of(cell)
    A, length = teacher.K, cell["tokens"]
    same = float(np.trace(A))
    other = float(A.sum()) - same
    left = float(np.sum(A * A)) - same**2 / length - other**2 / (length * (length - 1))
    return float(left * np.linalg.norm(teacher.V) ** 2)
