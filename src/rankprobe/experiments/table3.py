"""Table 3: students of rank r* − 1 and r*, and recovery from a small start, on both kinds of QK teachers."""

from __future__ import annotations

from collections.abc import Sequence

from rankprobe import spectra
from rankprobe.experiments.table import Cell, Entry, Result, coefficient_of_variation, mean
from rankprobe.experiments.tasks import Progress, best, recovery, refit, seeds, settings, students
from rankprobe.teachers import spectrum_values

TITLE = "Attention-native teachers: excess risk below and at r*, learned R_eff(K), T = 16, d = 32"

RANKS = (1, 2, 3, 4, 6, 8)
TEACHERS = ("linear_qk", "softmax_qk")
PAPER_BELOW = {
    "linear_qk": (None, 438.78, 578.38, 455.23, 446.90, 436.34),
    "softmax_qk": (None, 1.95, 2.63, 2.32, 2.51, 2.53),
}
PAPER_AT = {
    "linear_qk": (-0.001, -0.002, -0.002, -0.001, 0.000, -0.001),
    "softmax_qk": (-0.002,) * 6,
}
PAPER_LEARNED = {
    "linear_qk": (1.03, 1.93, 2.93, 3.91, 5.87, 7.84),
    "softmax_qk": (1.45, 2.39, 3.37, 4.31, 6.22, 8.15),
}
PAPER_CV = {
    "linear_qk": (0.003, 0.003, 0.001, 0.002, 0.000, 0.001),
    "softmax_qk": (0.001, 0.001, 0.001, 0.001, 0.000, 0.000),
}
PARTS = {"students": students, "recovery": recovery, "refit": refit, "sweep": students}


def cells(quick: bool) -> list[Cell]:
    """Students and recovery of every row and seed; the full sweep 1 … 2r* for the first seed."""
    out = []
    for teacher in TEACHERS:
        for rank in RANKS[1:3] if quick else RANKS:
            base = {"teacher": teacher, "rank": rank, "tokens": 16, "dim": 32, **settings(quick)}
            near = [r for r in (rank - 1, rank) if r > 0]
            for seed in seeds(quick):
                out += [
                    {**base, "seed": seed, "part": "refit"},
                    {**base, "seed": seed, "part": "students", "ranks": near},
                    {**base, "seed": seed, "part": "recovery"},
                ]
                if seed == 0 and not quick:
                    rest = [r for r in range(1, 2 * rank + 1) if r not in near]
                    out.append({**base, "seed": seed, "part": "sweep", "ranks": rest})
    return out


def run(cell: Cell, progress: Progress = None) -> Result:
    return PARTS[cell["part"]](cell, progress)


def entries(done: Sequence[tuple[Cell, Result]]) -> list[Entry]:
    out: list[Entry] = []
    for teacher in TEACHERS:
        for at, rank in enumerate(RANKS):
            here = [pair for pair in done if (pair[0]["teacher"], pair[0]["rank"]) == (teacher, rank)]
            of = {part: [result for cell, result in here if cell["part"] == part] for part in PARTS}
            if here:
                out += _row(f"{teacher.removesuffix('_qk')} r* = {rank}", teacher, rank, at, of)
    return out


def _row(row: str, teacher: str, rank: int, at: int, of: dict[str, list[Result]]) -> list[Entry]:
    out = []
    if rank > 1:
        below = tuple(result["excess"][str(rank - 1)] for result in of["students"])
        found = [
            best(value, refitted["excess"].get(str(rank - 1)))
            for value, refitted in zip(below, of["refit"], strict=True)
        ]
        out.append(
            Entry(
                row,
                "excess at r*−1",
                mean(below),
                PAPER_BELOW[teacher][at],
                mean([value for value in found if value is not None]),
                "best found (students, and refits without training)",
                below,
            )
        )
    reached = tuple(result["excess"][str(rank)] for result in of["students"])
    learned = tuple(result["effective_rank"] for result in of["recovery"])
    exact = spectra.effective_rank(spectrum_values("sharp", rank))
    spread = coefficient_of_variation(learned)
    ranks = tuple(float(result["rank"]) for result in of["refit"])
    return [
        *out,
        Entry(row, "excess at r*", mean(reached), PAPER_AT[teacher][at], 0.0, "closed form", reached),
        Entry(
            row,
            "learned R_eff(K)",
            mean(learned),
            PAPER_LEARNED[teacher][at],
            exact,
            "teacher's, without noise",
            learned,
            note="d − r* values of noise add to it, and fall with the square root of n",
        ),
        Entry(row, "CV over seeds", spread, PAPER_CV[teacher][at]),
        Entry(row, "rank, data alone", mean(ranks), None, rank, "rank of K*", ranks),
    ]


def notes(done: Sequence[tuple[Cell, Result]]) -> list[str]:
    sweeps = [(cell, result) for cell, result in done if cell["part"] == "sweep"]
    if not sweeps:
        return []
    above = [
        abs(excess)
        for cell, result in sweeps
        for rank, excess in result["excess"].items()
        if int(rank) > cell["rank"]
    ]
    return [f"Full sweeps of seed 0, r = 1 … 2r*: above r* the excess is at most {max(above):.4f}."]
